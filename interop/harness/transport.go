package harness

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Transport wraps an HTTP transport and records every list and watch. It reveals every relist of a client.
type Transport struct {
	next http.RoundTripper

	mu    sync.Mutex
	reads []Read // guarded by mu
}

// Read is one list or watch request of a client.
type Read struct {
	// At is the time of sending.
	At time.Time
	// Watch is true for a watch, false for a list or get.
	Watch bool
	// Whole is true if the request returns all present objects: a list, or a watch with sendInitialEvents.
	Whole bool
	// Path is the URL path.
	Path string
	// ResourceVersion is the parameter of that name.
	ResourceVersion string
	// Code is the HTTP status, 0 without a response.
	Code int
}

// Wrap is for rest.Config.WrapTransport.
func (t *Transport) Wrap(next http.RoundTripper) http.RoundTripper {
	t.next = next
	return t
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(request *http.Request) (*http.Response, error) {
	read := Read{At: time.Now(), Path: request.URL.Path}
	query := request.URL.Query()
	read.Watch = query.Get("watch") == "true" || query.Get("watch") == "1"
	read.Whole = request.Method == http.MethodGet && (!read.Watch || query.Get("sendInitialEvents") == "true")
	read.ResourceVersion = query.Get("resourceVersion")
	response, err := t.next.RoundTrip(request)
	if response != nil {
		read.Code = response.StatusCode
	}
	if request.Method == http.MethodGet {
		t.mu.Lock()
		t.reads = append(t.reads, read)
		t.mu.Unlock()
	}
	return response, err
}

// WholeReads returns the answered requests for all objects of a resource (its plural) sent after since.
func (t *Transport) WholeReads(resource string, since time.Time) []Read {
	t.mu.Lock()
	defer t.mu.Unlock()
	var whole []Read
	for _, read := range t.reads {
		if read.Whole && read.At.After(since) && strings.HasSuffix(read.Path, "/"+resource) && read.Code == http.StatusOK {
			whole = append(whole, read)
		}
	}
	return whole
}

// Reads returns the lists and watches of a resource (its plural) sent after since, answered or not.
func (t *Transport) Reads(resource string, since time.Time) []Read {
	t.mu.Lock()
	defer t.mu.Unlock()
	var reads []Read
	for _, read := range t.reads {
		if read.At.After(since) && strings.HasSuffix(read.Path, "/"+resource) {
			reads = append(reads, read)
		}
	}
	return reads
}

// String is one line for a failure message.
func (r Read) String() string {
	verb := "list"
	if r.Watch {
		verb = "watch"
	}
	return fmt.Sprintf("%s %s %s rv=%q -> %d", r.At.Format("15:04:05.000"), verb, r.Path, r.ResourceVersion, r.Code)
}
