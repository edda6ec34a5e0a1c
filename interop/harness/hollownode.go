package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// HollowNode is a node without a pool: a hub, kubemark's kubelet and kube-proxy, and CoreDNS. All of them reach the hub,
// and the hub the cloud, over TLS only.
type HollowNode struct {
	// Hub is its hub, behind its link.
	Hub *Hub
	// Kubelet and Proxy are the hollow components.
	Kubelet, Proxy *HollowComponent
	// DNS is CoreDNS, with the token of a service account.
	DNS *Process
	// Resolver asks only DNS.
	Resolver *net.Resolver
	// Tool is the access of a tool with the same token through the hub.
	Tool Kubeconfig

	cloud   *Cloud
	dir     string
	dnsPort int
}

// HollowComponent is a hollow kubelet or kube-proxy.
type HollowComponent struct {
	// Seen records its requests; it outlives restarts of component and hub.
	Seen *AgentProxy
	// Process is the present process.
	Process *Process

	morph  string
	port   int
	access Kubeconfig
	stop   func()
}

// StartHollowNode creates the Node, starts its hub and then everything else.
func (c *Cloud) StartHollowNode(ctx context.Context, name string) (*HollowNode, error) {
	hub, err := c.NewHub(ctx, name)
	if err != nil {
		return nil, err
	}
	n := &HollowNode{Hub: hub, cloud: c, dir: hub.command.Dir}
	c.onStop(n.Stop)
	if err := hub.Start(ctx); err != nil {
		return nil, err
	}
	if err := n.prepare(ctx); err != nil {
		return nil, err
	}
	return n, n.StartComponents(ctx)
}

// NewHub creates a Node and prepares its hub, without a pool. Stop it, or the cloud.
func (c *Cloud) NewHub(ctx context.Context, node string) (*Hub, error) {
	dir := filepath.Join(c.Dir, "node-"+node)
	if err := errors.Join(os.MkdirAll(dir, 0o755), c.CreateNode(ctx, node, node)); err != nil {
		return nil, err
	}
	return c.newHub(node, dir, "", PoolOptions{Name: node})
}

// Stop ends its process and its link.
func (h *Hub) Stop() {
	if h.Process != nil {
		_ = h.Process.Stop()
	}
	h.Link.Close()
}

// prepare makes the accesses of the components; all of them stay over restarts.
func (n *HollowNode) prepare(ctx context.Context) error {
	access, err := n.Hub.SecureProxy()
	if err != nil {
		return err
	}
	if n.Kubelet, err = n.newComponent("kubelet", KubeletAgent, access); err != nil {
		return err
	}
	if n.Proxy, err = n.newComponent("proxy", KubeProxyAgent, access); err != nil {
		return err
	}
	token, err := n.cloud.ReaderToken(ctx)
	if err != nil {
		return err
	}
	n.Tool = Kubeconfig{Server: access.Server, CA: access.CA, Token: token}
	n.dnsPort, err = FreePort()
	n.Resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "udp", fmt.Sprintf("127.0.0.1:%d", n.dnsPort))
	}}
	return err
}

func (n *HollowNode) newComponent(morph, agent string, access Kubeconfig) (*HollowComponent, error) {
	seen, err := n.cloud.StartAgentProxyTLS(access, agent)
	if err != nil {
		return nil, err
	}
	port, err := FreePort()
	return &HollowComponent{Seen: seen, morph: morph, port: port,
		access: Kubeconfig{Server: seen.URL, CA: n.cloud.CA.CertPEM, Token: access.Token}}, err
}

// StartComponents starts kubelet, kube-proxy and CoreDNS, at the beginning and after [HollowNode.Crash].
func (n *HollowNode) StartComponents(ctx context.Context) error {
	for _, component := range []*HollowComponent{n.Kubelet, n.Proxy} {
		process, stop, err := n.cloud.startHollowAt(component.morph, n.Hub.Node, component.access, component.port)
		if err != nil {
			return err
		}
		component.Process, component.stop = process, stop
	}
	dns, err := StartCoreDNS(n.dir, n.Tool, n.dnsPort)
	n.DNS = dns
	return err
}

// Crash kills hub and components.
func (n *HollowNode) Crash() {
	n.Hub.Process.Kill()
	n.stopComponents()
}

func (n *HollowNode) stopComponents() {
	for _, component := range []*HollowComponent{n.Kubelet, n.Proxy} {
		if component != nil && component.stop != nil {
			component.stop()
		}
	}
	if n.DNS != nil {
		n.DNS.Kill()
	}
}

// Stop ends everything.
func (n *HollowNode) Stop() {
	n.stopComponents()
	for _, component := range []*HollowComponent{n.Kubelet, n.Proxy} {
		if component != nil {
			component.Seen.Close()
		}
	}
	n.Hub.Stop()
}

// Logs returns the last lines of every process.
func (n *HollowNode) Logs(lines int) string {
	processes := []*Process{n.Hub.Process, n.DNS}
	for _, component := range []*HollowComponent{n.Kubelet, n.Proxy} {
		if component != nil {
			processes = append(processes, component.Process)
		}
	}
	text := ""
	for _, process := range processes {
		if process != nil {
			text += fmt.Sprintf("--- %s\n%s\n", process.Name, process.Tail(lines))
		}
	}
	return text
}

// Pods asks the kubelet for the pods that it knows. A hollow kubelet serves this without TLS, on this machine.
func (n *HollowNode) Pods(ctx context.Context) ([]corev1.Pod, error) {
	body, err := httpGet(ctx, http.DefaultClient, fmt.Sprintf("http://127.0.0.1:%d/pods", n.Kubelet.port))
	if err != nil {
		return nil, err
	}
	var list corev1.PodList
	return list.Items, json.Unmarshal(body, &list)
}

// StartCoreDNS starts CoreDNS for cluster.local on 127.0.0.1; starting it again in the same folder appends to its log.
func StartCoreDNS(dir string, access Kubeconfig, port int) (*Process, error) {
	binary, err := StockBinary("coredns")
	if err != nil {
		return nil, err
	}
	kubeconfig, corefile := filepath.Join(dir, "coredns.kubeconfig"), filepath.Join(dir, "Corefile")
	text := fmt.Sprintf(".:%d {\n  bind 127.0.0.1\n  errors\n  kubernetes cluster.local {\n    kubeconfig %s\n  }\n}\n", port, kubeconfig)
	if err := errors.Join(access.Write(kubeconfig), os.WriteFile(corefile, []byte(text), 0o644)); err != nil {
		return nil, err
	}
	return Start(Command{Name: "coredns", Path: binary, Dir: dir, Args: []string{"-conf", corefile}})
}

// StartTimed starts the process again and returns the time from its exec until check passes.
func (h *Hub) StartTimed(ctx context.Context, limit time.Duration, check func(context.Context) error) (time.Duration, error) {
	p, err := Start(h.command)
	if err != nil {
		return 0, err
	}
	h.Process = p
	err = PollProcess(ctx, p, limit, time.Millisecond, check)
	return time.Since(p.StartedAt), err
}
