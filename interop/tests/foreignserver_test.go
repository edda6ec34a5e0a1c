package tests

import (
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"testing"
	"time"
)

// silentLog swallows the handshake errors that are the point of these tests.
var silentLog = log.New(io.Discard, "", 0)

// foreignServer answers HTTPS with a certificate of a CA that the hub was not told about.
func foreignServer(t *testing.T, f badFiles) string {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(f.otherCert, f.otherKey)
	must(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server := &http.Server{
		Handler:           http.NotFoundHandler(),
		ReadHeaderTimeout: 10 * time.Second,
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
		ErrorLog:          silentLog,
	}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = server.Close() })
	return "https://" + listener.Addr().String()
}
