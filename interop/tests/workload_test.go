package tests

import (
	"context"
	"fmt"
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"yurt.test/interop/harness"
)

// syncLimit is the time in which a change in the cloud must reach every informer.
const syncLimit = 2 * time.Second

// newWorkload creates a workload with n Services and n EndpointSlices of 10 endpoints that is cleared with the test. It
// prints the seed, so that a failure can be repeated.
func newWorkload(t *testing.T, cloud *harness.Cloud, n int) *harness.Workload {
	t.Helper()
	ctx := testContext(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	namespace := fmt.Sprintf("interop-%d", seed%1_000_000_000)
	w, err := harness.NewWorkload(ctx, cloud.Client, namespace, seed, 10)
	must(t, err)
	must(t, w.Fill(ctx, n))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := w.Clear(ctx); err != nil {
			t.Logf("clearing the workload: %v", err)
		}
	})
	return w
}

// startMirrors starts one mirror of the pool scope per hub, as a component without credentials; every second one
// begins with sendInitialEvents instead of a list.
func startMirrors(t *testing.T, hubs []*harness.Hub) []*harness.Mirror {
	t.Helper()
	var mirrors []*harness.Mirror
	for i, hub := range hubs {
		mirrors = append(mirrors, startMirror(t, harness.MirrorOptions{
			Name: hub.Node, Server: hub.Proxy(), UserAgent: harness.PlainAgent, WatchList: i%2 == 0, Resources: harness.PoolScope,
		}))
	}
	waitSynced(t, mirrors)
	return mirrors
}

func startMirror(t *testing.T, options harness.MirrorOptions) *harness.Mirror {
	t.Helper()
	mirror, err := harness.StartMirror(options)
	must(t, err)
	t.Cleanup(mirror.Stop)
	return mirror
}

func waitSynced(t *testing.T, mirrors []*harness.Mirror) {
	t.Helper()
	for _, mirror := range mirrors {
		must(t, mirror.WaitSynced(testContext(t), readyLimit))
	}
}

// shows returns nil if a mirror has exactly the change's state of the object.
func shows(mirror *harness.Mirror, change harness.Change) error {
	object := mirror.Get(change.Resource, change.Key)
	switch {
	case change.Gone && object == nil:
		return nil
	case change.Gone:
		return fmt.Errorf("%s still has the deleted %s %s at %s", mirror.Name, change.Resource.Resource, change.Key, object.GetResourceVersion())
	case object == nil:
		return fmt.Errorf("%s does not have %s %s", mirror.Name, change.Resource.Resource, change.Key)
	case object.GetResourceVersion() != change.ResourceVersion || string(object.GetUID()) != change.UID:
		return fmt.Errorf("%s has %s %s at %s, the cloud at %s", mirror.Name, change.Resource.Resource, change.Key,
			object.GetResourceVersion(), change.ResourceVersion)
	}
	return nil
}

// waitShown waits until all mirrors show a change and returns the elapsed time.
func waitShown(ctx context.Context, mirrors []*harness.Mirror, change harness.Change) (time.Duration, error) {
	started := time.Now()
	err := harness.Poll(ctx, syncLimit, 2*time.Millisecond, func(context.Context) error {
		for _, mirror := range mirrors {
			if err := shows(mirror, change); err != nil {
				return err
			}
		}
		return nil
	})
	return time.Since(started), err
}

// waitEqual waits until every mirror holds exactly the cloud's list: keys, resourceVersions and all content that JSON
// can express.
func waitEqual(t *testing.T, cloud *harness.Cloud, mirrors []*harness.Mirror, limit time.Duration) {
	t.Helper()
	for _, gvr := range harness.PoolScope {
		must(t, harness.Poll(testContext(t), limit, 50*time.Millisecond, func(ctx context.Context) error {
			want, err := cloudContent(ctx, cloud, gvr)
			if err != nil {
				return err
			}
			for _, mirror := range mirrors {
				if err := sameContent(mirror.Name, want, mirror.Content(gvr)); err != nil {
					return fmt.Errorf("%s: %w", gvr.Resource, err)
				}
			}
			return nil
		}))
	}
}

func cloudContent(ctx context.Context, cloud *harness.Cloud, gvr schema.GroupVersionResource) (map[string]*unstructured.Unstructured, error) {
	list, err := cloud.Dynamic.Resource(gvr).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return byKey(list), nil
}

func byKey(list *unstructured.UnstructuredList) map[string]*unstructured.Unstructured {
	content := map[string]*unstructured.Unstructured{}
	for i := range list.Items {
		item := &list.Items[i]
		content[item.GetNamespace()+"/"+item.GetName()] = item
	}
	return content
}

func sameContent(name string, want, have map[string]*unstructured.Unstructured) error {
	for key, object := range want {
		got := have[key]
		if got == nil {
			return fmt.Errorf("%s lacks %s", name, key)
		}
		if got.GetResourceVersion() != object.GetResourceVersion() {
			return fmt.Errorf("%s has %s at %s, the cloud at %s", name, key, got.GetResourceVersion(), object.GetResourceVersion())
		}
		if !reflect.DeepEqual(got.Object, object.Object) {
			return fmt.Errorf("%s has other content of %s at the same resourceVersion:\n%v\nthe cloud:\n%v", name, key, got.Object, object.Object)
		}
	}
	for key := range have {
		if want[key] == nil {
			return fmt.Errorf("%s has %s, the cloud does not", name, key)
		}
	}
	return nil
}

// wholeReads counts an informer set's loads of complete collections after since.
func wholeReads(mirror *harness.Mirror, since time.Time) []harness.Read {
	var reads []harness.Read
	for _, gvr := range harness.PoolScope {
		reads = append(reads, mirror.Transport.WholeReads(gvr.Resource, since)...)
	}
	return reads
}

// checkUnbroken asserts that clients are unaffected by a change of source: no relist, no DELETED for an existing
// object, no missed deletion found by a relist, no resourceVersion that goes backwards.
func checkUnbroken(t *testing.T, w *harness.Workload, mirrors []*harness.Mirror, since time.Time) {
	t.Helper()
	for _, mirror := range mirrors {
		if reads := wholeReads(mirror, since); len(reads) > 0 {
			t.Errorf("%s: %d relists: %v; watch errors: %q", mirror.Name, len(reads), reads, mirror.WatchErrors())
		}
		for _, line := range mirror.Backwards() {
			t.Error("resourceVersion went backwards:", line)
		}
		for _, deleted := range mirror.Deletes() {
			if !w.Deleted(deleted.UID) {
				t.Errorf("%s: DELETED for living %s %s", mirror.Name, deleted.Resource, deleted.Key)
			}
			if deleted.Guessed {
				t.Errorf("%s: the deletion of %s %s was not delivered but found by a relist", mirror.Name, deleted.Resource, deleted.Key)
			}
		}
	}
}

// writer changes the workload at a steady pace until it is stopped.
type writer struct {
	cancel context.CancelFunc
	done   chan struct{}
	writes int   // read after done
	err    error // read after done
}

// startWriter makes one random change per pace.
func startWriter(t *testing.T, w *harness.Workload, pace time.Duration) *writer {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	wr := &writer{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(wr.done)
		ticker := time.NewTicker(pace)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			// Not with ctx: a write must not be torn in the middle when the writer stops.
			if _, err := w.Step(context.Background()); err != nil {
				wr.err = err
				return
			}
			wr.writes++
		}
	}()
	t.Cleanup(func() { wr.cancel(); <-wr.done })
	return wr
}

// stop ends the writer and returns how many writes the cloud acknowledged.
func (wr *writer) stop(t *testing.T) int {
	t.Helper()
	wr.cancel()
	<-wr.done
	must(t, wr.err)
	return wr.writes
}
