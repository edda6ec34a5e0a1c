package harness

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"
)

// AgentProxy forwards plain HTTP to a hub under another User-Agent. The hollow components call themselves
// "hollow-kubelet" and "hollow-proxy"; a hub gives the node's identity to the kubelet and kube-proxy only.
type AgentProxy struct {
	// URL is its listening address.
	URL    string
	server *http.Server
}

// StartAgentProxy forwards to target, with every request's User-Agent replaced.
func StartAgentProxy(target, agent string) (*AgentProxy, error) {
	to, err := url.Parse(target)
	if err != nil {
		return nil, err
	}
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Header.Set("User-Agent", agent)
		},
		FlushInterval: -1, // watches must not wait for a full buffer
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	p := &AgentProxy{URL: "http://" + address, server: &http.Server{Addr: address, Handler: forward, ReadHeaderTimeout: 10 * time.Second}}
	go func() { _ = p.server.ListenAndServe() }()
	return p, Poll(context.Background(), 5*time.Second, 10*time.Millisecond, func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+"/version", nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			err = response.Body.Close()
		}
		return err
	})
}

// Close ends it and its connections.
func (p *AgentProxy) Close() { _ = p.server.Close() }
