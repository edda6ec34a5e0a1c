package harness

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"k8s.io/client-go/rest"
)

// bodyMax bounds the bytes that the harness reads of a response.
const bodyMax = 256 << 20

// httpGet returns the body of a 200 response; any other status is an error that quotes the beginning of the body.
func httpGet(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, bodyMax))
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", url, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s: %.300s", url, response.Status, strings.TrimSpace(string(body)))
	}
	return body, nil
}

// ExpectOK returns nil if a GET gets 200.
func ExpectOK(ctx context.Context, client *http.Client, url string) error {
	_, err := httpGet(ctx, client, url)
	return err
}

// httpClientFor returns a plain HTTP client with the identity and CA of a kubeconfig.
func httpClientFor(k Kubeconfig) (*http.Client, error) {
	return httpClientFrom(k.Config("interop-harness"))
}

func httpClientFrom(config *rest.Config) (*http.Client, error) {
	return rest.HTTPClientFor(config)
}
