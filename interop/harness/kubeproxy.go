package harness

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
)

// KubeProxy is a stock kube-proxy in iptables mode. It changes the packet filter of the network namespace that it runs in.
type KubeProxy struct {
	// Process is the present process.
	Process *Process

	command Command
	health  string
}

// StartKubeProxy starts kube-proxy for a node against a server, and returns once it is healthy.
func StartKubeProxy(ctx context.Context, dir, node string, server Kubeconfig) (*KubeProxy, error) {
	path, err := StockBinary("kube-proxy")
	if err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(dir, "kube-proxy.kubeconfig")
	if err := server.Write(kubeconfig); err != nil {
		return nil, err
	}
	ports, err := FreePorts(2)
	if err != nil {
		return nil, err
	}
	proxy := &KubeProxy{health: fmt.Sprintf("http://127.0.0.1:%d/healthz", ports[0]), command: Command{
		Name: "kube-proxy", Path: path, Dir: dir, Args: []string{
			"--kubeconfig=" + kubeconfig, "--hostname-override=" + node, "--proxy-mode=iptables", "--iptables-min-sync-period=10ms",
			fmt.Sprintf("--healthz-bind-address=127.0.0.1:%d", ports[0]), fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", ports[1]),
			// The limits of the machine's connection table are not the test's.
			"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s",
		}}}
	return proxy, proxy.Start(ctx)
}

// Start starts or restarts the process, and returns once it is healthy.
func (k *KubeProxy) Start(ctx context.Context) error {
	process, err := Start(k.command)
	if err != nil {
		return err
	}
	k.Process = process
	return PollProcess(ctx, process, startLimit, readyPoll, func(ctx context.Context) error {
		return ExpectOK(ctx, http.DefaultClient, k.health)
	})
}
