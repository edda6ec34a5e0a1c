package tests

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"yurt.test/interop/harness"
)

// silentLog drops the handshake errors that these tests provoke.
var silentLog = log.New(io.Discard, "", 0)

// foreignServer answers HTTPS with a certificate of a CA that the hub does not have.
func foreignServer(t *testing.T, f badFiles) string {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(f.otherCert, f.otherKey)
	must(t, err)
	return serveTLS(t, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12})
}

// strictServer has the right certificate and accepts only client certificates of its own CA; the flags give the hub an
// identity of another CA.
func strictServer(t *testing.T, f badFiles) []string {
	t.Helper()
	mine, err := harness.NewCA("mine")
	must(t, err)
	other, err := harness.NewCA("somebody-else")
	must(t, err)
	serving, err := mine.IssueServer("cloud", "127.0.0.1")
	must(t, err)
	pair, err := tls.X509KeyPair(serving.Cert, serving.Key)
	must(t, err)
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(mine.CertPEM)
	server := serveTLS(t, &tls.Config{
		Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12,
		ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert,
	})
	identity, err := other.IssueClient("system:node:bad-0", "system:nodes")
	must(t, err)
	path := filepath.Join(f.dir, "foreign.kubeconfig")
	must(t, harness.Kubeconfig{Server: server, CA: mine.CertPEM, Identity: &identity}.Write(path))
	return []string{"--server-addr=" + server, "--kubeconfig=" + path}
}

func serveTLS(t *testing.T, config *tls.Config) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server := &http.Server{
		Handler:           http.NotFoundHandler(),
		ReadHeaderTimeout: 10 * time.Second,
		TLSConfig:         config,
		ErrorLog:          silentLog,
	}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = server.Close() })
	return "https://" + listener.Addr().String()
}
