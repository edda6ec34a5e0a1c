package harness

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Agents of configured components: without credentials they use the node's identity.
const (
	// PlainAgent is a component without any filter, so its view is the cloud's, byte for byte.
	PlainAgent = "flanneld/interop"
	// KubeletAgent is the kubelet.
	KubeletAgent = "kubelet/v1.36.3 (linux/amd64) interop"
	// KubeProxyAgent is kube-proxy.
	KubeProxyAgent = "kube-proxy/v1.36.3 (linux/amd64) interop"
)

// loopback is the address of everything, unless a test says otherwise. Pods could not reach a hub there.
const loopback = "127.0.0.1"

// Hub is a running (or killed) yurthub of one node, behind its own link to the cloud.
type Hub struct {
	// Node is the node's name.
	Node string
	// Link is its link to the cloud.
	Link *Link
	// ProxyAddress is the address of its proxy ports.
	ProxyAddress string
	// ProxyPort accepts plain HTTP from components of the node.
	ProxyPort int
	// SecurePort accepts HTTPS.
	SecurePort int
	// ServePort serves health, metrics and state.
	ServePort int
	// Process is the present process.
	Process *Process

	command Command
}

// Proxy is the access of a node's component to the cloud through the hub: plain HTTP, no credentials.
func (h *Hub) Proxy() Kubeconfig {
	return Kubeconfig{Server: fmt.Sprintf("http://%s:%d", h.ProxyAddress, h.ProxyPort)}
}

// SecureProxy is the access of a node's component over HTTPS, with the CA and the token that the hub makes for them.
func (h *Hub) SecureProxy() (Kubeconfig, error) {
	k := Kubeconfig{Server: fmt.Sprintf("https://%s:%d", h.ProxyAddress, h.SecurePort)}
	ca, err := os.ReadFile(filepath.Join(h.root(), "pki", "yurthub-ca.crt"))
	if err != nil {
		return k, err
	}
	token, err := os.ReadFile(filepath.Join(h.root(), "kubelet.token"))
	k.CA, k.Token = ca, strings.TrimSpace(string(token))
	return k, err
}

// root is the hub's --root-dir.
func (h *Hub) root() string { return filepath.Join(h.command.Dir, h.Node, "root") }

// AdminURL is the base of health, metrics and state.
func (h *Hub) AdminURL() string { return fmt.Sprintf("http://127.0.0.1:%d", h.ServePort) }

// State reads /debug/state.json.
func (h *Hub) State(ctx context.Context) (State, error) {
	var state State
	body, err := httpGet(ctx, http.DefaultClient, h.AdminURL()+"/debug/state.json")
	if err != nil {
		return state, err
	}
	if err := json.Unmarshal(body, &state); err != nil {
		return state, fmt.Errorf("%s: state.json: %w in %.300s", h.Node, err, body)
	}
	return state, nil
}

// Metrics scrapes /metrics.
func (h *Hub) Metrics(ctx context.Context) (Metrics, error) {
	page, err := httpGet(ctx, http.DefaultClient, h.AdminURL()+"/metrics")
	if err != nil {
		return nil, err
	}
	return ParseMetrics(page), nil
}

// Start starts or restarts the process with the same flags and waits until its health port answers.
func (h *Hub) Start(ctx context.Context) error {
	if h.Process != nil && h.Process.Running() {
		return errors.New("hub " + h.Node + " is still running: kill or stop it first")
	}
	p, err := Start(h.command)
	if err != nil {
		return err
	}
	h.Process = p
	return PollProcess(ctx, p, startLimit, readyPoll, func(ctx context.Context) error {
		return ExpectOK(ctx, http.DefaultClient, h.AdminURL()+"/v1/healthz")
	})
}

// HubFlags are the inputs of a hub's command line.
type HubFlags struct {
	// Node and Pool are their names.
	Node, Pool string
	// Dir holds the files and folders of the hub, below <Dir>/<Node>.
	Dir string
	// Server is the URL of the cloud, or of the link to it.
	Server string
	// Coordinator is the URL of the coordinator, empty without one.
	Coordinator string
	// ProxyAddress is the address of its proxy ports, 127.0.0.1 if empty.
	ProxyAddress string
	// ProxyPort, SecurePort and ServePort are its ports; the last one is on 127.0.0.1.
	ProxyPort, SecurePort, ServePort int
}

// HubArgs writes the files a hub needs and returns its flags.
func (c *Cloud) HubArgs(f HubFlags) ([]string, error) {
	files, err := c.writeHubFiles(f)
	if err != nil {
		return nil, err
	}
	args := []string{
		"--node-name=" + f.Node, "--nodepool-name=" + f.Pool,
		"--server-addr=" + f.Server,
		"--bootstrap-mode=kubeletcertificate", "--kubeconfig=" + files.kubeconfig,
		"--enable-dummy-if=false", fmt.Sprintf("--node-identity-uids=%d", os.Geteuid()),
		"--bind-address=127.0.0.1", fmt.Sprintf("--serve-port=%d", f.ServePort),
		"--bind-proxy-address=" + cmp.Or(f.ProxyAddress, loopback), fmt.Sprintf("--proxy-port=%d", f.ProxyPort), fmt.Sprintf("--proxy-secure-port=%d", f.SecurePort),
		"--root-dir=" + files.root, "--disk-cache-path=" + files.cache,
	}
	if f.Coordinator == "" {
		return args, nil
	}
	return append(args,
		"--enable-coordinator=true", "--coordinator-server-addr="+f.Coordinator, "--delegate-kubeconfig="+files.delegate,
		"--leader-elect-lease-duration=15s", "--leader-elect-renew-deadline=10s", "--leader-elect-retry-period=2s",
	), nil
}

// newHub creates the link, the files and the flags of a hub, without starting it. The URL of the coordinator is empty
// without one.
func (c *Cloud) newHub(node, dir, coordinator string, options PoolOptions) (*Hub, error) {
	path, err := YurtBinary("yurthub")
	if err != nil {
		return nil, err
	}
	ports, err := FreePorts(3)
	if err != nil {
		return nil, err
	}
	link, err := NewLink(fmt.Sprintf("127.0.0.1:%d", c.Port))
	if err != nil {
		return nil, err
	}
	h := &Hub{Node: node, Link: link, ProxyAddress: cmp.Or(options.ProxyAddress, loopback), ProxyPort: ports[0], SecurePort: ports[1], ServePort: ports[2]}
	args, err := c.HubArgs(HubFlags{Node: node, Pool: options.Name, Dir: dir, Server: link.URL(), Coordinator: coordinator,
		ProxyAddress: h.ProxyAddress, ProxyPort: h.ProxyPort, SecurePort: h.SecurePort, ServePort: h.ServePort})
	if err != nil {
		return nil, err
	}
	for i, arg := range args {
		if strings.HasPrefix(arg, "--server-addr=") {
			args[i] = strings.Join(append([]string{arg}, options.MoreServers...), ",")
		}
	}
	if options.Relay {
		port, err := FreePort()
		if err != nil {
			return nil, err
		}
		args = append(args, "--relay-address=127.0.0.1", fmt.Sprintf("--relay-port=%d", port))
	}
	h.command = Command{Name: node, Path: path, Args: append(args, options.HubArgs...), Env: options.HubEnv, Dir: dir}
	return h, nil
}

// hubFiles are the paths in a hub's flags.
type hubFiles struct{ kubeconfig, delegate, root, cache string }

func (c *Cloud) writeHubFiles(f HubFlags) (hubFiles, error) {
	base := filepath.Join(f.Dir, f.Node)
	files := hubFiles{
		kubeconfig: filepath.Join(base, "kubelet.kubeconfig"), delegate: filepath.Join(base, "delegate.kubeconfig"),
		root: filepath.Join(base, "root"), cache: filepath.Join(base, "cache"),
	}
	for _, dir := range []string{files.root, files.cache} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return files, err
		}
	}
	node, err := c.NodeKubeconfig(f.Node, f.Server)
	if err != nil {
		return files, err
	}
	if err := node.Write(files.kubeconfig); err != nil {
		return files, err
	}
	delegate, err := c.DelegateKubeconfig(f.Server)
	if err != nil {
		return files, err
	}
	if err := delegate.Write(files.delegate); err != nil {
		return files, err
	}
	if f.ProxyAddress == "" || f.ProxyAddress == loopback {
		return files, nil
	}
	return files, c.placeServingCertificate(files.root, f)
}

// placeServingCertificate does what an administrator does before the filters may lead pods to a hub at --bind-proxy-address.
func (c *Cloud) placeServingCertificate(root string, f HubFlags) error {
	pair, err := c.CA.IssueServer(f.Node, f.ProxyAddress)
	if err != nil {
		return err
	}
	dir := filepath.Join(root, "pki")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "yurthub-server-current.pem"), append(pair.Cert, pair.Key...), 0o600)
}

// WaitState polls quickly until the hub is in the wanted state and returns the time of the first sighting.
func (h *Hub) WaitState(ctx context.Context, want string, limit time.Duration) (time.Time, error) {
	err := PollProcess(ctx, h.Process, limit, readyPoll, func(ctx context.Context) error {
		state, err := h.State(ctx)
		if err == nil && state.HubState != want {
			err = fmt.Errorf("%s is %s, not %s", h.Node, state.HubState, want)
		}
		return err
	})
	return time.Now(), err
}
