package tests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"yurt.test/interop/harness"
)

// These tests expose an informer of client-go to faults of streams and requests, and to the responses of servers that
// cannot serve. Each time it must recover by itself, from this server, to exactly the present state.

// reflector is one informer behind a fault.
type reflector struct {
	*harness.Mirror
	faults    *harness.Faults
	client    kubernetes.Interface
	namespace string
}

// follow starts an informer in its own namespace with "kept", "changed" and "deleted".
func follow(t *testing.T, coordinator *harness.Coordinator, client kubernetes.Interface, watchList bool) *reflector {
	t.Helper()
	r := prepare(t, client)
	r.start(t, coordinator.Admin, watchList)
	waitSynced(t, []*harness.Mirror{r.Mirror})
	return r
}

func prepare(t *testing.T, client kubernetes.Interface) *reflector {
	t.Helper()
	name := strings.ToLower(t.Name()[strings.IndexByte(t.Name(), '/')+1:])
	r := &reflector{faults: harness.NewFaults(), client: client, namespace: strings.NewReplacer("/", "-", "_", "-").Replace(name)}
	createNamespace(t, client, r.namespace)
	for _, name := range []string{"kept", "changed", "deleted"} {
		r.create(t, name)
	}
	return r
}

func (r *reflector) start(t *testing.T, server harness.Kubeconfig, watchList bool) {
	t.Helper()
	r.Mirror = startMirror(t, harness.MirrorOptions{Name: r.namespace, Server: server, UserAgent: "reflector-test", WatchList: watchList,
		Resources: []schema.GroupVersionResource{harness.ConfigMaps}, Namespace: r.namespace, Faults: r.faults})
}

func (r *reflector) create(t *testing.T, name string) string {
	t.Helper()
	object, err := r.client.CoreV1().ConfigMaps(r.namespace).Create(testContext(t), configMap(name, "1"), metav1.CreateOptions{})
	must(t, err)
	return object.ResourceVersion
}

// happens changes one object and deletes another.
func (r *reflector) happens(t *testing.T) harness.Change {
	t.Helper()
	maps := r.client.CoreV1().ConfigMaps(r.namespace)
	must(t, maps.Delete(testContext(t), "deleted", metav1.DeleteOptions{}))
	object, err := maps.Update(testContext(t), configMap("changed", "2"), metav1.UpdateOptions{})
	must(t, err)
	return harness.Change{Resource: harness.ConfigMaps, Key: r.namespace + "/changed", UID: string(object.UID), ResourceVersion: object.ResourceVersion}
}

// comesBack waits until the informer has the present state, and returns its requests.
func (r *reflector) comesBack(t *testing.T, change harness.Change, since time.Time) []harness.Read {
	t.Helper()
	must(t, harness.Poll(testContext(t), readyLimit, 10*time.Millisecond, func(context.Context) error {
		if held := r.Get(harness.ConfigMaps, r.namespace+"/deleted"); held != nil {
			return fmt.Errorf("the deleted object is still there: %v", r.Transport.Reads("configmaps", since))
		}
		if err := shows(r.Mirror, change); err != nil {
			return err
		}
		// An informer changes its store before it calls its handlers.
		if len(r.Deletes()) == 0 || r.Told(change.Key) < 2 {
			return fmt.Errorf("the handlers saw the deletions %v and %d versions of %s", r.Deletes(), r.Told(change.Key), change.Key)
		}
		return nil
	}))
	for _, line := range r.Backwards() {
		t.Error(line)
	}
	if told := r.Told(r.namespace + "/kept"); told != 1 {
		t.Errorf("an unchanged object caused %d events", told)
	}
	if left := r.faults.Left(); left > 0 {
		t.Errorf("%d planned faults did not happen", left)
	}
	if deletes := r.Deletes(); len(deletes) != 1 || deletes[0].Key != r.namespace+"/deleted" {
		t.Errorf("deletions reported: %v", deletes)
	}
	return r.Transport.Reads("configmaps", since)
}

// describe formats a read: the request, its resourceVersion, and the status code.
func describe(reads []harness.Read) string {
	var words []string
	for _, read := range reads {
		kind := "list"
		switch {
		case read.Watch && read.Whole:
			kind = "watch-list"
		case read.Watch:
			kind = "watch"
		}
		words = append(words, fmt.Sprintf("%s@%s:%d", kind, read.ResourceVersion, read.Code))
	}
	return strings.Join(words, " ")
}

// mark moves the informer to a known resourceVersion, with a further object.
func (r *reflector) mark(t *testing.T, name string) string {
	t.Helper()
	rv := r.create(t, name)
	must(t, harness.Poll(testContext(t), readyLimit, 5*time.Millisecond, func(context.Context) error {
		held := r.Get(harness.ConfigMaps, r.namespace+"/"+name)
		if held == nil || held.GetResourceVersion() != rv {
			return fmt.Errorf("%s is not there: %s", name, describe(r.Transport.Reads("configmaps", time.Time{})))
		}
		return nil
	}))
	return rv
}

func plainWatch(request *http.Request) bool {
	return harness.IsWatch(request) && request.URL.Query().Get("sendInitialEvents") != "true"
}

func wholeWatch(request *http.Request) bool {
	return harness.IsWatch(request) && !plainWatch(request)
}

func plainList(request *http.Request) bool {
	return request.Method == http.MethodGet && !harness.IsWatch(request)
}

// wants compares an informer's requests with the allowed pattern.
func wants(t *testing.T, reads []harness.Read, want ...string) {
	t.Helper()
	got := strings.Fields(describe(reads))
	if !slices.Equal(got, want) {
		t.Errorf("read by %q, want %q", got, want)
	}
}

// TestReflector runs every fault with informers that list and with informers that stream lists.
// Conformance: 7.04, 7.08, 7.11, 7.12, 7.13, 7.14, 7.15, 7.21, 7.25
func TestReflector(t *testing.T) {
	coordinator := standalone(t)
	config := coordinator.Admin.Config("reflector-test")
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	for _, watchList := range []bool{false, true} {
		mode := "List"
		if watchList {
			mode = "WatchList"
		}
		t.Run(mode, func(t *testing.T) {
			for _, frame := range []struct {
				code   int
				reason string
			}{{410, "Expired"}, {504, "Timeout"}, {500, "InternalError"}} {
				t.Run(fmt.Sprintf("Error%d", frame.code), func(t *testing.T) {
					t.Parallel()
					checkErrorEvent(t, follow(t, coordinator, client, watchList), watchList, frame.code, frame.reason)
				})
			}
			t.Run("Busy", func(t *testing.T) { t.Parallel(); checkBusy(t, follow(t, coordinator, client, watchList)) })
			t.Run("Failing", func(t *testing.T) {
				t.Parallel()
				checkFailing(t, follow(t, coordinator, client, watchList), watchList)
			})
			t.Run("Later", func(t *testing.T) { t.Parallel(); checkLater(t, follow(t, coordinator, client, watchList)) })
			t.Run("Cut", func(t *testing.T) { t.Parallel(); checkCut(t, follow(t, coordinator, client, watchList)) })
		})
	}
	t.Run("WatchListStart", func(t *testing.T) {
		for name, start := range watchListStarts {
			t.Run(name, func(t *testing.T) { t.Parallel(); start.check(t, coordinator, client) })
		}
	})
	t.Run("ListTimeout", func(t *testing.T) { t.Parallel(); checkListTimeout(t, coordinator, client) })
	t.Run("Link", func(t *testing.T) { t.Parallel(); checkBrokenLink(t, coordinator, client) })
	t.Run("Retries", func(t *testing.T) { t.Parallel(); checkRetries(t, coordinator) })
}

// checkErrorEvent ends a stream with an ERROR while changes are held back. The informer reads everything again, at its
// resourceVersion, and gets a response immediately. Missing objects are deletions, and equal objects cause no event.
func checkErrorEvent(t *testing.T, r *reflector, watchList bool, code int, reason string) {
	at := r.mark(t, "mark")
	r.faults.Hold()
	change := r.happens(t)
	since := time.Now()
	r.faults.End(harness.ErrorFrame(code, reason), nil)
	reads := r.comesBack(t, change, since)
	whole := "list@" + at + ":200"
	if watchList {
		whole = "watch-list@" + at + ":200"
	}
	if got := strings.Fields(describe(reads)); len(got) == 0 || got[0] != whole {
		t.Errorf("read by %q, want %q first", got, whole)
	}
	if deletes := r.Deletes(); len(deletes) == 1 && !deletes[0].Guessed {
		t.Error("the deletion came as an event, not from a relist")
	}
}

// checkBusy answers 429 to the watch that follows a clean end: the informer retries with the same resourceVersion.
func checkBusy(t *testing.T, r *reflector) {
	at := r.mark(t, "mark")
	r.faults.Plan(plainWatch, harness.StatusFault(http.StatusTooManyRequests, "TooManyRequests", 0))
	since := time.Now()
	r.faults.Hold()
	change := r.happens(t)
	r.faults.End("", nil)
	wants(t, r.comesBack(t, change, since), "watch@"+at+":429", "watch@"+at+":200")
}

// checkFailing answers 500 to the watch that follows a clean end: the informer reads everything again.
func checkFailing(t *testing.T, r *reflector, watchList bool) {
	at := r.mark(t, "mark")
	r.faults.Plan(plainWatch, harness.StatusFault(http.StatusInternalServerError, "InternalError", 0))
	since := time.Now()
	r.faults.Hold()
	change := r.happens(t)
	r.faults.End("", nil)
	reads := strings.Fields(describe(r.comesBack(t, change, since)))
	whole := "list@" + at + ":200"
	if watchList {
		whole = "watch-list@" + at + ":200"
	}
	if len(reads) < 2 || reads[0] != "watch@"+at+":500" || reads[1] != whole {
		t.Errorf("read by %q, want a watch that fails and then %q", reads, whole)
	}
}

// checkLater answers 503 with Retry-After to that watch: the same request is sent again, below the informer.
func checkLater(t *testing.T, r *reflector) {
	at := r.mark(t, "mark")
	for range 2 {
		r.faults.Plan(plainWatch, harness.StatusFault(http.StatusServiceUnavailable, "ServiceUnavailable", 1))
	}
	since := time.Now()
	r.faults.Hold()
	change := r.happens(t)
	r.faults.End("", nil)
	wants(t, r.comesBack(t, change, since), "watch@"+at+":503", "watch@"+at+":503", "watch@"+at+":200")
}

// checkCut breaks a stream in the middle, as a lost HTTP/1.1 connection does: it is resumed without a relist.
func checkCut(t *testing.T, r *reflector) {
	at := r.mark(t, "mark")
	since := time.Now()
	r.faults.Hold()
	change := r.happens(t)
	r.faults.End("", io.ErrUnexpectedEOF)
	wants(t, r.comesBack(t, change, since), "watch@"+at+":200")
}

// watchListStart is the failure of the first streamed list, and the informer's next request.
type watchListStart struct {
	answer func(*http.Request) (*http.Response, error)
	want   []string
}

var watchListStarts = map[string]watchListStart{
	"Refused": {func(*http.Request) (*http.Response, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}, []string{"watch-list@:0", "watch-list@:200"}},
	"Busy":    {harness.StatusFault(http.StatusTooManyRequests, "TooManyRequests", 0), []string{"watch-list@:429", "watch-list@:200"}},
	"Expired": {harness.StreamFault(http.StatusGone, "Expired"), []string{"watch-list@:200", "watch-list@:200"}},
	"Invalid": {harness.StatusFault(http.StatusUnprocessableEntity, "Invalid", 0), []string{"watch-list@:422", "list@0:200"}},
}

func (s watchListStart) check(t *testing.T, coordinator *harness.Coordinator, client kubernetes.Interface) {
	r := prepare(t, client)
	r.faults.Plan(wholeWatch, s.answer)
	since := time.Now()
	r.start(t, coordinator.Admin, true)
	waitSynced(t, []*harness.Mirror{r.Mirror})
	reads := strings.Fields(describe(r.Transport.Reads("configmaps", since)))
	if len(reads) < len(s.want) || !slices.Equal(reads[:len(s.want)], s.want) {
		t.Errorf("read by %q, want %q first", reads, s.want)
	}
	r.comesBack(t, r.happens(t), since)
}

// checkListTimeout answers lists with 504 and Retry-After: client-go repeats them silently. This server therefore
// answers a foreign resourceVersion immediately, with 410.
func checkListTimeout(t *testing.T, coordinator *harness.Coordinator, client kubernetes.Interface) {
	r := prepare(t, client)
	for range 2 {
		r.faults.Plan(plainList, harness.StatusFault(http.StatusGatewayTimeout, "Timeout", 1))
	}
	since := time.Now()
	r.start(t, coordinator.Admin, false)
	waitSynced(t, []*harness.Mirror{r.Mirror})
	reads := strings.Fields(describe(r.Transport.Reads("configmaps", since)))
	want := []string{"list@0:504", "list@0:504", "list@0:200"}
	if len(reads) < 3 || !slices.Equal(reads[:3], want) {
		t.Errorf("read by %q, want %q first", reads, want)
	}
	if errs := r.WatchErrors(); len(errs) > 0 {
		t.Errorf("the informer noticed: %q", errs)
	}
	r.comesBack(t, r.happens(t), since)
	sent := r.faults.Sent(http.MethodGet, "/api/v1/namespaces/"+r.namespace+"/configmaps")
	foreign := fmt.Sprint(uint64(1)<<62 + 5)
	_, err := client.CoreV1().ConfigMaps(r.namespace).List(testContext(t), metav1.ListOptions{ResourceVersion: foreign})
	var status interface{ Status() metav1.Status }
	if !errors.As(err, &status) || status.Status().Code != http.StatusGone {
		t.Errorf("a list at a foreign resourceVersion is answered %v after %d requests", err, sent)
	}
}

// checkBrokenLink cuts the connection of an informer over HTTP/1.1 repeatedly, in the middle of changes: it never
// relists.
func checkBrokenLink(t *testing.T, coordinator *harness.Coordinator, client kubernetes.Interface) {
	link, err := harness.NewLink(strings.TrimPrefix(coordinator.URL, "https://"))
	must(t, err)
	t.Cleanup(link.Close)
	r := prepare(t, client)
	server := coordinator.Admin
	server.Server = link.URL()
	r.Mirror = startMirror(t, harness.MirrorOptions{Name: r.namespace, Server: server, UserAgent: "reflector-test", HTTP1: true,
		Resources: []schema.GroupVersionResource{harness.ConfigMaps}, Namespace: r.namespace})
	waitSynced(t, []*harness.Mirror{r.Mirror})
	since := time.Now()
	var change harness.Change
	for round := range 3 {
		// client-go treats a stream without any event as a server that refuses to serve.
		r.mark(t, fmt.Sprintf("round-%d", round))
		must(t, link.Cut())
		must(t, link.Resume())
		object, err := client.CoreV1().ConfigMaps(r.namespace).Update(testContext(t), configMap("changed", fmt.Sprint(round)), metav1.UpdateOptions{})
		must(t, err)
		change = harness.Change{Resource: harness.ConfigMaps, Key: r.namespace + "/changed", UID: string(object.UID), ResourceVersion: object.ResourceVersion}
		must(t, harness.Poll(testContext(t), readyLimit, 5*time.Millisecond, func(context.Context) error { return shows(r.Mirror, change) }))
	}
	if whole := r.Transport.WholeReads("configmaps", since); len(whole) > 0 {
		t.Errorf("read again: %v; watch errors: %q", whole, r.WatchErrors())
	}
}

// checkRetries loses the connection during a read and during a write: the read is repeated. The write is not, and has
// happened once or never.
func checkRetries(t *testing.T, coordinator *harness.Coordinator) {
	config := coordinator.Admin.Config("retries-test")
	faults := harness.NewFaults()
	config.Wrap(faults.Wrap)
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	createNamespace(t, client, "retries")
	lost := func(*http.Request) (*http.Response, error) {
		return nil, &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	}
	ofMaps := func(method string) func(*http.Request) bool {
		return func(request *http.Request) bool {
			return request.Method == method && strings.HasSuffix(request.URL.Path, "/configmaps")
		}
	}
	path := "/api/v1/namespaces/retries/configmaps"
	faults.Plan(ofMaps(http.MethodGet), lost)
	if _, err := client.CoreV1().ConfigMaps("retries").List(testContext(t), metav1.ListOptions{}); err != nil {
		t.Errorf("a list is not repeated: %v", err)
	}
	if sent := faults.Sent(http.MethodGet, path); sent != 2 {
		t.Errorf("the list was sent %d times", sent)
	}
	faults.Plan(ofMaps(http.MethodPost), lost)
	_, err = client.CoreV1().ConfigMaps("retries").Create(testContext(t), configMap("a", "1"), metav1.CreateOptions{})
	if err == nil || faults.Sent(http.MethodPost, path) != 1 {
		t.Errorf("a create that lost its connection was sent %d times: %v", faults.Sent(http.MethodPost, path), err)
	}
}

// TestReflectorOverRestart restarts a coordinator under informers: its closed port makes them wait with their
// resourceVersion, and they resume from there.
// Conformance: 7.16
func TestReflectorOverRestart(t *testing.T) {
	coordinator := standalone(t)
	client, err := kubernetes.NewForConfig(coordinator.Admin.Config("reflector-test"))
	must(t, err)
	var reflectors []*reflector
	for _, watchList := range []bool{false, true} {
		t.Run(fmt.Sprintf("Start-%t", watchList), func(t *testing.T) { reflectors = append(reflectors, prepare(t, client)) })
		r := reflectors[len(reflectors)-1]
		r.start(t, coordinator.Admin, watchList)
		waitSynced(t, []*harness.Mirror{r.Mirror})
	}
	for _, clean := range []bool{true, false} {
		for _, r := range reflectors {
			r.mark(t, fmt.Sprintf("before-%t", clean))
		}
		since := time.Now()
		if clean {
			must(t, coordinator.Process.Stop())
		} else {
			coordinator.Process.Kill()
		}
		// They find the port closed.
		for _, r := range reflectors {
			must(t, harness.Poll(testContext(t), readyLimit, 5*time.Millisecond, func(context.Context) error {
				for _, read := range r.Transport.Reads("configmaps", since) {
					if read.Code == 0 {
						return nil
					}
				}
				return errors.New("no informer has retried")
			}))
		}
		must(t, coordinator.Start(testContext(t)))
		for _, r := range reflectors {
			r.mark(t, fmt.Sprintf("after-%t", clean))
			// A lost HTTP/2 connection causes a relist.
			if whole := r.Transport.WholeReads("configmaps", since); len(whole) > 0 && clean {
				t.Errorf("read again: %v; watch errors: %q", whole, r.WatchErrors())
			}
			if deletes := r.Deletes(); len(deletes) > 0 {
				t.Errorf("deletions reported: %v", deletes)
			}
		}
	}
}
