package tests

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"yurt.test/interop/harness"
)

const (
	jsonFormat     = "application/json"
	protobufFormat = "application/vnd.kubernetes.protobuf"
)

// filteredClient is a component on the node of a hub: shared informers of typed objects, each with a handler that keeps
// its own fold of the events.
type filteredClient struct {
	name      string
	node      string
	component string
	faults    *harness.Faults
	// other lists with a client of its own.
	other     kubernetes.Interface
	informers map[schema.GroupVersionResource]cache.SharedIndexInformer
	stop      context.CancelFunc

	mu     sync.Mutex
	folds  map[schema.GroupVersionResource]map[string]runtime.Object // guarded by mu
	wrong  []string                                                  // guarded by mu; callbacks that contradict earlier ones
	recent []shownEvent                                              // guarded by mu; since the last take
}

// shownEvent is an added or updated object.
type shownEvent struct {
	resource schema.GroupVersionResource
	key      string
	object   runtime.Object
}

// listWatch selects whether client-go begins with a list or with sendInitialEvents.
type listWatch struct {
	*cache.ListWatch
	isList bool
}

// IsWatchListSemanticsUnSupported reports to client-go whether it must list.
func (l listWatch) IsWatchListSemanticsUnSupported() bool { return l.isList }

// startFiltered starts a component. JSON informers begin with a list, protobuf informers with a watch-list.
func startFiltered(t *testing.T, hub *harness.Hub, component, format string) *filteredClient {
	t.Helper()
	c := &filteredClient{name: fmt.Sprintf("%s of %s in %s", component, hub.Node, format), node: hub.Node, component: component,
		faults: harness.NewFaults(), informers: map[schema.GroupVersionResource]cache.SharedIndexInformer{},
		folds: map[schema.GroupVersionResource]map[string]runtime.Object{}}
	config := hub.Proxy().Config(component + "/v1.36.3 (linux/amd64) interop")
	config.ContentType, config.AcceptContentTypes = format, format+","+jsonFormat
	var err error
	c.other, err = kubernetes.NewForConfig(config)
	must(t, err)
	config.Wrap(c.faults.Wrap)
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	c.stop = cancel
	t.Cleanup(cancel)
	for _, gvr := range harness.PoolScope {
		var getter cache.Getter = client.CoreV1().RESTClient()
		var of runtime.Object = &corev1.Service{}
		switch gvr {
		case harness.EndpointSlices:
			getter, of = client.DiscoveryV1().RESTClient(), &discoveryv1.EndpointSlice{}
		case harness.Endpoints:
			of = &corev1.Endpoints{}
		}
		source := listWatch{cache.NewListWatchFromClient(getter, gvr.Resource, "", fields.Everything()), format == jsonFormat}
		informer := cache.NewSharedIndexInformer(source, of, 0, cache.Indexers{})
		c.folds[gvr] = map[string]runtime.Object{}
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { c.changed(gvr, nil, object) },
			UpdateFunc: func(old, object any) { c.changed(gvr, old, object) },
			DeleteFunc: func(object any) { c.deleted(gvr, object) },
		})
		must(t, err)
		c.informers[gvr] = informer
		go informer.RunWithContext(ctx)
	}
	return c
}

func (c *filteredClient) changed(gvr schema.GroupVersionResource, old, object any) {
	key := metaKey(object.(metav1.Object))
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, isHeld := c.folds[gvr][key]; isHeld != (old != nil) {
		c.wrong = append(c.wrong, fmt.Sprintf("%s: %s %s: held before: %t, updated: %t", c.name, gvr.Resource, key, isHeld, old != nil))
	}
	c.folds[gvr][key] = object.(runtime.Object)
	c.recent = append(c.recent, shownEvent{gvr, key, object.(runtime.Object)})
}

// deleted removes the object. A hub sends DELETED also for objects that a client may hold, so it need not be held.
func (c *filteredClient) deleted(gvr schema.GroupVersionResource, object any) {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	key := metaKey(object.(metav1.Object))
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.folds[gvr], key)
}

// settled returns nil once the informers' stores are the expected view, a fresh list of another client is equal, and the
// handlers' folds are equal to the stores, RVs included. The RVs of a list may differ from the store's: another process of
// the hub gave those, or another view with the same filters.
func (c *filteredClient) settled(ctx context.Context, w *world) error {
	for _, gvr := range harness.PoolScope {
		store := map[string]runtime.Object{}
		for _, object := range c.informers[gvr].GetStore().List() {
			store[metaKey(object.(metav1.Object))] = object.(runtime.Object)
		}
		what := c.name + ", " + gvr.Resource
		if err := differs(what+" in the store", w.sees(c.node, c.component, gvr), normals(store, false)); err != nil {
			return err
		}
		listed, err := listTyped(ctx, c.other, gvr)
		if err != nil {
			return err
		}
		if err := differs(what+" in the store, by a list", normals(listed, false), normals(store, false)); err != nil {
			return err
		}
		c.mu.Lock()
		fold := normals(c.folds[gvr], true)
		c.mu.Unlock()
		if err := differs(what+" at the handlers", normals(store, true), fold); err != nil {
			return err
		}
	}
	return nil
}

// take returns the events since the last call.
func (c *filteredClient) take() []shownEvent {
	c.mu.Lock()
	defer c.mu.Unlock()
	recent := c.recent
	c.recent = nil
	return recent
}

// contradictions are the callbacks that contradicted earlier ones, since the start.
func (c *filteredClient) contradictions() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.wrong)
}

// unallowed describes an event that showed more than the component could see in any of these worlds.
func (c *filteredClient) unallowed(event shownEvent, worlds []*world) error {
	allowed, isVisible := map[string]bool{}, false
	for _, w := range worlds {
		object, isThere := w.objects[event.resource][event.key]
		if !isThere {
			continue
		}
		if shown := w.show(c.node, c.component, event.resource, event.key, object); shown != nil {
			isVisible = true
			for _, node := range nodesOf(shown) {
				allowed[node] = true
			}
		}
	}
	if !isVisible {
		return fmt.Errorf("%s: was shown %s %s, which is hidden", c.name, event.resource.Resource, event.key)
	}
	for _, node := range nodesOf(event.object) {
		if !allowed[node] {
			return fmt.Errorf("%s: was shown an endpoint on %s in %s %s, allowed are %v", c.name, node, event.resource.Resource, event.key, allowed)
		}
	}
	return nil
}
