package harness

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"
)

// recordedMax bounds the bytes that an AgentProxy records of one answer.
const recordedMax = 256 << 10

// AgentProxy forwards to a hub under another User-Agent. Over HTTPS it records what passes. The hollow components call
// themselves "hollow-kubelet" and "hollow-proxy"; a hub gives the node's identity to the kubelet and kube-proxy only.
type AgentProxy struct {
	// URL is its listening address.
	URL    string
	server *http.Server
	next   http.RoundTripper

	mu     sync.Mutex
	passed []*passing // guarded by mu
}

// Passed is one request that an AgentProxy forwarded.
type Passed struct {
	// At is its arrival.
	At time.Time
	// Method is the HTTP method.
	Method string
	// URL has path and query.
	URL *url.URL
	// Code is the HTTP status, 0 without an answer so far.
	Code int
	// Body is the beginning of the answer that has passed so far.
	Body string
	// Ended is true once the answer has passed whole, or broke.
	Ended bool
}

// IsWatch reports whether it is a watch.
func (p Passed) IsWatch() bool { return strings.Contains(p.URL.RawQuery, "watch=") }

// IsWhole reports whether the answer has all present objects: a list, or a watch that begins with them.
func (p Passed) IsWhole() bool {
	if p.IsWatch() {
		return p.URL.Query().Get("sendInitialEvents") == "true"
	}
	path := strings.Split(strings.Trim(p.URL.Path, "/"), "/")
	version := map[string]int{"api": 2, "apis": 3}[path[0]]
	if version == 0 || len(path) <= version || p.Method != http.MethodGet {
		return false
	}
	path = path[version:]
	return len(path) == 1 || path[0] == "namespaces" && len(path) == 3
}

// String is one line for a failure message.
func (p Passed) String() string {
	return fmt.Sprintf("%s %s %s -> %d, ended %t", p.At.Format("15:04:05.000"), p.Method, p.URL, p.Code, p.Ended)
}

// StartAgentProxy forwards plain HTTP to target, with every request's User-Agent replaced.
func StartAgentProxy(target, agent string) (*AgentProxy, error) {
	return startAgentProxy("http", target, agent, http.DefaultTransport, nil)
}

// StartAgentProxyTLS is [StartAgentProxy] over HTTPS on both sides, with a serving certificate of the cloud's CA.
func (c *Cloud) StartAgentProxyTLS(target Kubeconfig, agent string) (*AgentProxy, error) {
	pair, err := c.CA.IssueServer("agent-proxy", "127.0.0.1")
	if err != nil {
		return nil, err
	}
	serving, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(target.CA)
	// A transport of its own: every component has its own connection.
	next := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	return startAgentProxy("https", target.Server, agent, next, &tls.Config{
		Certificates: []tls.Certificate{serving}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}})
}

func startAgentProxy(scheme, target, agent string, next http.RoundTripper, serving *tls.Config) (*AgentProxy, error) {
	to, err := url.Parse(target)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &AgentProxy{URL: scheme + "://" + listener.Addr().String(), next: next}
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Header.Set("User-Agent", agent)
			r.Out.Header.Del("Accept-Encoding") // the transport decompresses, so that the record is readable
		},
		FlushInterval: -1, // watches must not wait for a full buffer
		ErrorLog:      log.New(io.Discard, "", 0),
		Transport:     next,
	}
	if serving != nil {
		forward.Transport = p
	}
	p.server = &http.Server{Handler: forward, ReadHeaderTimeout: 10 * time.Second, TLSConfig: serving}
	go func() {
		if serving == nil {
			_ = p.server.Serve(listener)
		} else {
			_ = p.server.ServeTLS(listener, "", "")
		}
	}()
	return p, nil
}

// Close ends it and its connections.
func (p *AgentProxy) Close() { _ = p.server.Close() }

// Passed returns the requests since a time that keep accepts, in order of arrival.
func (p *AgentProxy) Passed(since time.Time, keep func(Passed) bool) []Passed {
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []Passed
	for _, one := range p.passed {
		passed := one.Passed
		passed.Body = string(one.body)
		if passed.At.After(since) && keep(passed) {
			found = append(found, passed)
		}
	}
	return found
}

// RoundTrip implements http.RoundTripper for the forwarding itself.
func (p *AgentProxy) RoundTrip(request *http.Request) (*http.Response, error) {
	one := &passing{proxy: p, Passed: Passed{At: time.Now(), Method: request.Method, URL: request.URL}}
	p.mu.Lock()
	p.passed = append(p.passed, one)
	p.mu.Unlock()
	response, err := p.next.RoundTrip(request)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		one.Ended = true
		return nil, err
	}
	one.Code, one.source = response.StatusCode, response.Body
	response.Body = one
	return response, nil
}

// passing is a request in flight, and the body of its answer.
type passing struct {
	Passed
	proxy  *AgentProxy
	source io.ReadCloser
	body   []byte // guarded by the proxy's mu, as Passed is
}

// Read implements io.Reader.
func (o *passing) Read(buffer []byte) (int, error) {
	n, err := o.source.Read(buffer)
	o.proxy.mu.Lock()
	defer o.proxy.mu.Unlock()
	o.body = append(o.body, buffer[:min(n, recordedMax-len(o.body))]...)
	o.Ended = o.Ended || err != nil
	return n, err
}

// Close implements io.Closer.
func (o *passing) Close() error {
	o.proxy.mu.Lock()
	o.Ended = true
	o.proxy.mu.Unlock()
	return o.source.Close()
}
