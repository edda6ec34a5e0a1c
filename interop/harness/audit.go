package harness

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// AuditMark is a position in the cloud's audit log; reads from it return later entries.
type AuditMark struct{ offset int64 }

// AuditRequest is one list or watch request the cloud saw.
type AuditRequest struct {
	// Verb is "list" or "watch".
	Verb string
	// Resource is the plural, followed by a dot and the group if there is one.
	Resource string
	// User is the caller.
	User string
	// Groups are the user's groups.
	Groups []string
	// Agent is the User-Agent.
	Agent string
	// Query are the request's parameters.
	Query url.Values
	// Code is the HTTP status.
	Code int
	// Received is the arrival time of the request.
	Received time.Time
	// Ended is the time of the complete response; zero for an open watch.
	Ended time.Time
}

// auditEvent is the part of an audit.k8s.io/v1 Event the harness reads.
type auditEvent struct {
	AuditID    string `json:"auditID"`
	Stage      string `json:"stage"`
	RequestURI string `json:"requestURI"`
	Verb       string `json:"verb"`
	User       struct {
		Username string   `json:"username"`
		Groups   []string `json:"groups"`
	} `json:"user"`
	UserAgent string `json:"userAgent"`
	ObjectRef struct {
		Resource string `json:"resource"`
		APIGroup string `json:"apiGroup"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	Received time.Time `json:"requestReceivedTimestamp"`
	At       time.Time `json:"stageTimestamp"`
}

// AuditMark returns the present end of the audit log.
func (c *Cloud) AuditMark() (AuditMark, error) {
	info, err := os.Stat(c.auditLog)
	if errors.Is(err, os.ErrNotExist) {
		return AuditMark{}, nil
	}
	if err != nil {
		return AuditMark{}, err
	}
	return AuditMark{offset: info.Size()}, nil
}

// PoolRequests returns the list and watch requests since mark that keep accepts, in order of arrival.
func (c *Cloud) PoolRequests(mark AuditMark, keep func(AuditRequest) bool) ([]AuditRequest, error) {
	file, err := os.Open(c.auditLog)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err := file.Seek(mark.offset, io.SeekStart); err != nil {
		return nil, err
	}
	byID := map[string]*AuditRequest{}
	reader := bufio.NewReaderSize(file, 1<<20)
	for {
		line, err := reader.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break // text without a newline is still being written
		}
		if err != nil {
			return nil, err
		}
		var event auditEvent
		if err := json.Unmarshal(line, &event); err != nil {
			if mark.offset > 0 && len(byID) == 0 {
				continue // the mark is in the middle of a line
			}
			return nil, fmt.Errorf("audit log: %w", err)
		}
		if event.Verb == "list" || event.Verb == "watch" {
			record(byID, event)
		}
	}
	var requests []AuditRequest
	for _, request := range byID {
		if keep(*request) {
			requests = append(requests, *request)
		}
	}
	slices.SortFunc(requests, func(a, b AuditRequest) int { return a.Received.Compare(b.Received) })
	return requests, nil
}

// record merges one stage into its request.
func record(byID map[string]*AuditRequest, event auditEvent) {
	request := byID[event.AuditID]
	if request == nil {
		request = &AuditRequest{Verb: event.Verb, Resource: event.ObjectRef.Resource, User: event.User.Username,
			Groups: event.User.Groups, Agent: event.UserAgent, Received: event.Received}
		if event.ObjectRef.APIGroup != "" {
			request.Resource += "." + event.ObjectRef.APIGroup
		}
		if uri, err := url.Parse(event.RequestURI); err == nil {
			request.Query = uri.Query()
		}
		byID[event.AuditID] = request
	}
	request.Code = event.ResponseStatus.Code
	if event.Stage == "ResponseComplete" || event.Stage == "Panic" {
		request.Ended = event.At
	}
}

// ByNodes accepts the requests of node identities whose name begins with prefix.
func ByNodes(prefix string) func(AuditRequest) bool {
	return func(r AuditRequest) bool { return strings.HasPrefix(r.User, "system:node:"+prefix) }
}

// sampleLimit is the limit parameter of a hub's sample of a namespace.
const sampleLimit = "20"

// IsInitialLoad reports whether the request transfers the whole collection: the first page of a list (except a probe
// with limit=1 and a sample) or a watch that begins with the present objects. Rejected requests transfer nothing.
func (r AuditRequest) IsInitialLoad() bool {
	if r.Code != http.StatusOK {
		return false
	}
	switch r.Verb {
	case "list":
		limit := r.Query.Get("limit")
		return limit != "1" && limit != sampleLimit && r.Query.Get("continue") == "" && r.Query.Get("fieldSelector") == ""
	case "watch":
		return r.Query.Get("sendInitialEvents") == "true" || r.Query.Get("resourceVersion") == "" || r.Query.Get("resourceVersion") == "0"
	}
	return false
}

// EndedByTimeout reports whether a watch ran for its timeoutSeconds, one second less at most.
func (r AuditRequest) EndedByTimeout() bool {
	seconds, err := strconv.Atoi(r.Query.Get("timeoutSeconds"))
	return err == nil && !r.Ended.IsZero() && r.Ended.Sub(r.Received) >= time.Duration(seconds-1)*time.Second
}

// String is one line for a failure message.
func (r AuditRequest) String() string {
	ended := "open"
	if !r.Ended.IsZero() {
		ended = r.Ended.Sub(r.Received).Round(time.Millisecond).String()
	}
	return fmt.Sprintf("%s %s %s by %s (%s) ?%s -> %d, %s", r.Received.Format("15:04:05.000"), r.Verb, r.Resource,
		r.User, r.Agent, r.Query.Encode(), r.Code, ended)
}
