package harness

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"time"
)

// StartControllerManager starts kube-controller-manager with the node controllers, and all grace periods at their
// defaults. Further flags add to these, --controllers too. It ends with the cloud, or by stopping the returned process.
func (c *Cloud) StartControllerManager(ctx context.Context, flags ...string) (*Process, error) {
	path, err := StockBinary("kube-controller-manager")
	if err != nil {
		return nil, err
	}
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(c.Dir, "kube-controller-manager.kubeconfig")
	if err := c.Admin.Write(kubeconfig); err != nil {
		return nil, err
	}
	p, err := Start(Command{Name: "kube-controller-manager", Path: path, Dir: c.Dir, Args: append([]string{
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
		"--leader-elect=false",
		"--controllers=node-lifecycle-controller,taint-eviction-controller,serviceaccount-controller,root-ca-certificate-publisher-controller",
		"--root-ca-file=" + c.CAFile, "--service-account-private-key-file=" + c.signingKeyFile,
		"--cert-dir=" + filepath.Join(c.Dir, "kube-controller-manager-certs"),
	}, flags...)})
	if err != nil {
		return nil, err
	}
	c.onStop(func() { _ = p.Stop() })
	client, err := httpClientInsecure(c.Admin)
	if err != nil {
		return nil, err
	}
	url := fmt.Sprintf("https://127.0.0.1:%d/healthz", port)
	err = PollProcess(ctx, p, time.Minute, 100*time.Millisecond, func(ctx context.Context) error {
		return ExpectOK(ctx, client, url)
	})
	return p, err
}

// httpClientInsecure has k's identity but accepts any serving certificate: for components with self-signed ones.
func httpClientInsecure(k Kubeconfig) (*http.Client, error) {
	config := k.Config("interop-harness")
	config.TLSClientConfig.CAData, config.TLSClientConfig.Insecure = nil, true
	return httpClientFrom(config)
}
