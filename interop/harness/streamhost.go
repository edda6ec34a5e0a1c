package harness

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// streamIdle ends a stream without traffic.
const streamIdle = time.Minute

// StreamHost is the HTTPS port of a kubelet, for the requests that the fake runtime of a hollow kubelet does not serve:
// logs, exec and port-forward. Streams are those of the kubelet's own packages; commands run on this machine.
type StreamHost struct {
	// Node is the name of its Node.
	Node   string
	server *http.Server
}

// StartStreamHost creates a Node and serves its kubelet's port on 127.0.0.1, for kube-apiserver only. It ends with the
// cloud.
func (c *Cloud) StartStreamHost(ctx context.Context, node string) (*StreamHost, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	h := &StreamHost{Node: node}
	if h.server, err = c.streamServer(); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	c.onStop(func() { _ = h.server.Close() })
	go func() { _ = h.server.ServeTLS(listener, "", "") }()
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	nodes := c.Client.CoreV1().Nodes()
	if _, err = nodes.Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	// A patch, because the node controllers write the new Node, too.
	patch := fmt.Appendf(nil, `{"status":{"addresses":[{"type":"InternalIP","address":"127.0.0.1"}],"daemonEndpoints":{"kubeletEndpoint":{"Port":%d}}}}`,
		listener.Addr().(*net.TCPAddr).Port)
	_, err = nodes.Patch(ctx, node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return h, err
}

// streamServer demands a client certificate of the cloud's CA.
func (c *Cloud) streamServer() (*http.Server, error) {
	pair, err := c.CA.IssueServer("stream-host", "127.0.0.1")
	if err != nil {
		return nil, err
	}
	serving, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(c.CA.CertPEM)
	mux := http.NewServeMux()
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", serveExec)
	mux.HandleFunc("/portForward/{namespace}/{pod}", servePortForward)
	mux.HandleFunc("/containerLogs/{namespace}/{pod}/{container}", serveLogs)
	return &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, TLSConfig: &tls.Config{
		Certificates: []tls.Certificate{serving}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, // upgrades
	}}, nil
}

func serveExec(w http.ResponseWriter, r *http.Request) {
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	remotecommand.ServeExec(w, r, processes{}, r.PathValue("pod"), "", r.PathValue("container"), r.Form["command"], options,
		streamIdle, remotecommand.DefaultStreamCreationTimeout, remotecommand.SupportedStreamingProtocols)
}

func servePortForward(w http.ResponseWriter, r *http.Request) {
	options, err := portforward.NewV4Options(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	portforward.ServePortForward(w, r, processes{}, r.PathValue("pod"), "", options,
		streamIdle, remotecommand.DefaultStreamCreationTimeout, portforward.SupportedProtocols)
}

// serveLogs sends one line, and with follow=true one more after it was flushed.
func serveLogs(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "first line of %s\n", r.PathValue("pod"))
	if r.FormValue("follow") == "true" {
		_ = http.NewResponseController(w).Flush()
		fmt.Fprintf(w, "second line of %s\n", r.PathValue("pod"))
	}
}

// processes are containers whose commands are processes of this machine, and whose ports are its own.
type processes struct{}

// ExecInContainer implements remotecommand.Executor.
func (processes) ExecInContainer(ctx context.Context, _, _, _ string, command []string, in io.Reader, out, errs io.WriteCloser,
	_ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	process := exec.CommandContext(ctx, command[0], command[1:]...)
	process.Stdin, process.Stdout, process.Stderr = in, out, errs
	err := process.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return utilexec.CodeExitError{Err: err, Code: exit.ExitCode()}
	}
	return err
}

// PortForward implements portforward.PortForwarder.
func (processes) PortForward(ctx context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	defer conn.Close()
	go func() {
		_, _ = io.Copy(conn, stream)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(stream, conn)
	return err
}
