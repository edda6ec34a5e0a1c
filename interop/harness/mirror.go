package harness

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
)

// The pool-scope resources and the others the tests read.
var (
	Services       = schema.GroupVersionResource{Version: "v1", Resource: "services"}
	Endpoints      = schema.GroupVersionResource{Version: "v1", Resource: "endpoints"}
	EndpointSlices = schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}
	ConfigMaps     = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
)

// PoolScope is a pool's default scope.
var PoolScope = []schema.GroupVersionResource{Services, Endpoints, EndpointSlices}

// Mirror is a set of client-go shared informers that read through one server, with a record of all their events.
type Mirror struct {
	// Name is for messages: the hub it reads through.
	Name string
	// Transport records every list and watch of the informers.
	Transport *Transport

	informers map[schema.GroupVersionResource]cache.SharedIndexInformer
	stop      context.CancelFunc

	mu        sync.Mutex
	deletes   []Deleted
	backwards []string
	watchErrs []string
	last      map[string]uint64 // highest resourceVersion seen, by uid
	told      map[string]int    // number of added and modified events, by key
}

// Deleted is one deletion an informer reported.
type Deleted struct {
	Resource string
	Key      string
	UID      string
	At       time.Time
	// Guessed is true if the informer found the object missing in a relist instead of receiving DELETED.
	Guessed bool
}

// MirrorOptions configures a mirror.
type MirrorOptions struct {
	// Name is for messages.
	Name string
	// Server is the server and the identity.
	Server Kubeconfig
	// UserAgent is the source of the component's name at hubs.
	UserAgent string
	// WatchList makes the informers begin with sendInitialEvents instead of a list.
	WatchList bool
	// Resources to follow.
	Resources []schema.GroupVersionResource
	// Namespace restricts the informers, empty for all.
	Namespace string
	// Faults, if set, apply between the informers and the server.
	Faults *Faults
	// HTTP1 disables HTTP/2 for the informers.
	HTTP1 bool
}

// StartMirror starts the informers; they run until Stop.
func StartMirror(options MirrorOptions) (*Mirror, error) {
	m := &Mirror{Name: options.Name, Transport: &Transport{}, last: map[string]uint64{}, told: map[string]int{},
		informers: map[schema.GroupVersionResource]cache.SharedIndexInformer{}}
	config := options.Server.Config(options.UserAgent)
	if options.HTTP1 {
		config.NextProtos = []string{"http/1.1"}
	}
	if options.Faults != nil {
		config.Wrap(options.Faults.Wrap)
	}
	config.Wrap(m.Transport.Wrap)
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.stop = cancel
	for _, gvr := range options.Resources {
		source := &source{client: client.Resource(gvr).Namespace(options.Namespace), watchList: options.WatchList}
		informer := cache.NewSharedIndexInformer(source, &unstructured.Unstructured{}, 0, cache.Indexers{})
		if err := m.observe(informer, gvr.Resource); err != nil {
			cancel()
			return nil, err
		}
		m.informers[gvr] = informer
		go informer.RunWithContext(ctx)
	}
	return m, nil
}

// Stop ends the informers.
func (m *Mirror) Stop() { m.stop() }

// WaitSynced returns when every informer has its first complete content.
func (m *Mirror) WaitSynced(ctx context.Context, limit time.Duration) error {
	return Poll(ctx, limit, 10*time.Millisecond, func(context.Context) error {
		for gvr, informer := range m.informers {
			if !informer.HasSynced() {
				return fmt.Errorf("%s: informer for %s has not synced; watch errors: %q", m.Name, gvr.Resource, m.WatchErrors())
			}
		}
		return nil
	})
}

// Get returns the informer's object under "<namespace>/<name>", or nil.
func (m *Mirror) Get(gvr schema.GroupVersionResource, key string) *unstructured.Unstructured {
	object, found, err := m.informers[gvr].GetStore().GetByKey(key)
	if err != nil || !found {
		return nil
	}
	return object.(*unstructured.Unstructured)
}

// Content returns all objects of an informer, by key.
func (m *Mirror) Content(gvr schema.GroupVersionResource) map[string]*unstructured.Unstructured {
	content := map[string]*unstructured.Unstructured{}
	for _, object := range m.informers[gvr].GetStore().List() {
		u := object.(*unstructured.Unstructured)
		content[keyOf(u)] = u
	}
	return content
}

// Deletes returns the deletions reported so far.
func (m *Mirror) Deletes() []Deleted {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Deleted(nil), m.deletes...)
}

// Backwards returns a line for each decrease of an object's resourceVersion.
func (m *Mirror) Backwards() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.backwards...)
}

// Told returns the number of added and modified events for the object.
func (m *Mirror) Told(key string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.told[key]
}

// WatchErrors returns the errors of list and watch calls.
func (m *Mirror) WatchErrors() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.watchErrs...)
}

func (m *Mirror) observe(informer cache.SharedIndexInformer, resource string) error {
	err := informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.watchErrs = append(m.watchErrs, time.Now().Format("15:04:05.000 ")+resource+": "+err.Error())
	})
	if err != nil {
		return err
	}
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { m.seen(object) },
		UpdateFunc: func(old, object any) {
			// After a list an informer may repeat objects that it held.
			if old.(*unstructured.Unstructured).GetResourceVersion() != object.(*unstructured.Unstructured).GetResourceVersion() {
				m.seen(object)
			}
		},
		DeleteFunc: func(object any) { m.gone(resource, object) },
	})
	return err
}

func (m *Mirror) seen(object any) {
	u := object.(*unstructured.Unstructured)
	rv, err := strconv.ParseUint(u.GetResourceVersion(), 10, 64)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.told[keyOf(u)]++
	uid := string(u.GetUID())
	if err != nil || rv < m.last[uid] {
		m.backwards = append(m.backwards, fmt.Sprintf("%s: %s at %q after %d", m.Name, keyOf(u), u.GetResourceVersion(), m.last[uid]))
		return
	}
	m.last[uid] = rv
}

func (m *Mirror) gone(resource string, object any) {
	deleted := Deleted{Resource: resource, At: time.Now()}
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		deleted.Guessed, object = true, unknown.Obj
	}
	if u, ok := object.(*unstructured.Unstructured); ok {
		deleted.Key, deleted.UID = keyOf(u), string(u.GetUID())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.deletes = append(m.deletes, deleted)
}

func keyOf(u *unstructured.Unstructured) string {
	if u.GetNamespace() == "" {
		return u.GetName()
	}
	return u.GetNamespace() + "/" + u.GetName()
}
