package harness

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
)

// Faults is a client-side transport that replaces the server's response to planned requests.
type Faults struct {
	next http.RoundTripper

	mu      sync.Mutex
	planned []planned       // guarded by mu
	streams []*brokenStream // guarded by mu; open watches
	sent    map[string]int  // guarded by mu; requests that were to be sent, by method and path
}

type planned struct {
	applies func(*http.Request) bool
	answer  func(*http.Request) (*http.Response, error)
}

// NewFaults returns a transport without planned faults.
func NewFaults() *Faults { return &Faults{sent: map[string]int{}} }

// Wrap is for rest.Config.Wrap.
func (f *Faults) Wrap(next http.RoundTripper) http.RoundTripper {
	f.next = next
	return f
}

// Plan answers the next matching request, once; plans apply in order.
func (f *Faults) Plan(applies func(*http.Request) bool, answer func(*http.Request) (*http.Response, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.planned = append(f.planned, planned{applies, answer})
}

// Left is the number of unused plans.
func (f *Faults) Left() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.planned)
}

// Sent is the number of attempts of a request.
func (f *Faults) Sent(method, path string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sent[method+" "+path]
}

// Hold delays the data of the open watches.
func (f *Faults) Hold() { f.each((*brokenStream).hold) }

// End ends the open watches, with an optional last frame, and with err instead of a clean end if err is set.
func (f *Faults) End(frame string, err error) {
	f.each(func(s *brokenStream) { s.end(frame, err) })
}

func (f *Faults) each(do func(*brokenStream)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, stream := range f.streams {
		do(stream)
	}
}

// RoundTrip implements http.RoundTripper.
func (f *Faults) RoundTrip(request *http.Request) (*http.Response, error) {
	if answer := f.take(request); answer != nil {
		return answer(request)
	}
	response, err := f.next.RoundTrip(request)
	if err == nil && IsWatch(request) && response.StatusCode == http.StatusOK {
		stream := newBrokenStream(response.Body)
		response.Body = stream
		f.mu.Lock()
		f.streams = append(f.streams, stream)
		f.mu.Unlock()
	}
	return response, err
}

func (f *Faults) take(request *http.Request) func(*http.Request) (*http.Response, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent[request.Method+" "+request.URL.Path]++
	for i, p := range f.planned {
		if p.applies(request) {
			f.planned = append(f.planned[:i:i], f.planned[i+1:]...)
			return p.answer
		}
	}
	return nil
}

// IsWatch reports whether a request is a watch.
func IsWatch(request *http.Request) bool {
	watch := request.URL.Query().Get("watch")
	return watch == "true" || watch == "1"
}

// StatusFault answers with a Status. A Retry-After of 0 omits the header.
func StatusFault(code int, reason string, retryAfter int) func(*http.Request) (*http.Response, error) {
	return func(request *http.Request) (*http.Response, error) {
		header := http.Header{"Content-Type": {"application/json"}}
		if retryAfter > 0 {
			header.Set("Retry-After", fmt.Sprint(retryAfter))
		}
		return &http.Response{Status: http.StatusText(code), StatusCode: code, Proto: "HTTP/2.0", ProtoMajor: 2, Header: header,
			Body: io.NopCloser(strings.NewReader(statusBody(code, reason))), ContentLength: -1, Request: request}, nil
	}
}

// StreamFault answers a watch with 200 and an ERROR event.
func StreamFault(code int, reason string) func(*http.Request) (*http.Response, error) {
	return func(request *http.Request) (*http.Response, error) {
		return &http.Response{Status: "OK", StatusCode: http.StatusOK, Proto: "HTTP/2.0", ProtoMajor: 2,
			Header: http.Header{"Content-Type": {"application/json"}},
			Body:   io.NopCloser(strings.NewReader(ErrorFrame(code, reason))), ContentLength: -1, Request: request}, nil
	}
}

// ErrorFrame is an ERROR event in JSON.
func ErrorFrame(code int, reason string) string {
	return fmt.Sprintf(`{"type":"ERROR","object":%s}`+"\n", statusBody(code, reason))
}

func statusBody(code int, reason string) string {
	return fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"planned","reason":%q,"code":%d}`, reason, code)
}

// brokenStream forwards a watch until it is held or ended.
type brokenStream struct {
	source io.ReadCloser
	reader *io.PipeReader
	writer *io.PipeWriter

	mu   sync.Mutex
	held bool // guarded by mu
}

func newBrokenStream(source io.ReadCloser) *brokenStream {
	s := &brokenStream{source: source}
	s.reader, s.writer = io.Pipe()
	go s.pump()
	return s
}

func (s *brokenStream) pump() {
	buffer := make([]byte, 32<<10)
	for {
		n, err := s.source.Read(buffer)
		s.mu.Lock()
		held := s.held
		s.mu.Unlock()
		if held {
			return // the data just read is lost with the stream
		}
		if n > 0 {
			if _, err := s.writer.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			_ = s.writer.CloseWithError(err)
			return
		}
	}
}

func (s *brokenStream) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = true
}

func (s *brokenStream) end(frame string, err error) {
	s.hold()
	go func() {
		if frame != "" {
			_, _ = io.WriteString(s.writer, frame)
		}
		_ = s.writer.CloseWithError(err)
	}()
}

// Read implements io.Reader.
func (s *brokenStream) Read(p []byte) (int, error) { return s.reader.Read(p) }

// Close implements io.Closer.
func (s *brokenStream) Close() error {
	_ = s.reader.Close()
	return s.source.Close()
}
