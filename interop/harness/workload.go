package harness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
)

// Workload owns a set of Services and EndpointSlices in one namespace of the cloud and changes it at random. It is the
// only writer there, so it knows the expected state of all clients. Not for concurrent use, except Deleted.
type Workload struct {
	client    kubernetes.Interface
	namespace string
	endpoints int // per slice
	random    *rand.Rand
	serial    int
	live      map[schema.GroupVersionResource][]string // names

	mu      sync.Mutex
	deleted map[string]bool // guarded by mu; uids that this workload deletes, added before the request
}

// Change is one write that the cloud acknowledged.
type Change struct {
	Resource schema.GroupVersionResource
	// Key is "<namespace>/<name>".
	Key string
	// UID is the object's.
	UID string
	// ResourceVersion is the cloud's after the write; for a deletion the last known one.
	ResourceVersion string
	// Gone is true if the object was deleted.
	Gone bool
}

// NewWorkload creates the namespace; the same seed gives the same names and choices.
func NewWorkload(ctx context.Context, client kubernetes.Interface, namespace string, seed uint64, endpoints int) (*Workload, error) {
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, object, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	return &Workload{client: client, namespace: namespace, endpoints: endpoints, random: rand.New(rand.NewPCG(seed, seed)),
		live: map[schema.GroupVersionResource][]string{}, deleted: map[string]bool{}}, nil
}

// Fill creates n Services and n EndpointSlices, one of each per service name.
func (w *Workload) Fill(ctx context.Context, n int) error {
	for range n {
		if _, err := w.create(ctx, Services); err != nil {
			return err
		}
		if _, err := w.create(ctx, EndpointSlices); err != nil {
			return err
		}
	}
	return nil
}

// Step makes one random change: half updates, a quarter creations, a quarter deletions.
func (w *Workload) Step(ctx context.Context) (Change, error) {
	gvr := Services
	if w.random.IntN(2) == 0 {
		gvr = EndpointSlices
	}
	choice := w.random.IntN(4)
	if choice == 0 || len(w.live[gvr]) == 0 {
		return w.create(ctx, gvr)
	}
	index := w.random.IntN(len(w.live[gvr]))
	if choice == 1 {
		return w.remove(ctx, gvr, index)
	}
	return w.update(ctx, gvr, w.live[gvr][index])
}

// Update makes one random update, so the number of objects is constant.
func (w *Workload) Update(ctx context.Context) (Change, error) {
	gvr := EndpointSlices
	return w.update(ctx, gvr, w.live[gvr][w.random.IntN(len(w.live[gvr]))])
}

// Deleted reports whether this workload has sent a delete for the object with this uid.
func (w *Workload) Deleted(uid string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.deleted[uid]
}

// Namespace is the namespace of the objects.
func (w *Workload) Namespace() string { return w.namespace }

// Clear deletes all remaining objects of the workload.
func (w *Workload) Clear(ctx context.Context) error {
	for _, gvr := range []schema.GroupVersionResource{EndpointSlices, Services} {
		for len(w.live[gvr]) > 0 {
			if _, err := w.remove(ctx, gvr, len(w.live[gvr])-1); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *Workload) create(ctx context.Context, gvr schema.GroupVersionResource) (Change, error) {
	w.serial++
	var meta metav1.Object
	var err error
	if gvr == Services {
		meta, err = w.client.CoreV1().Services(w.namespace).Create(ctx, w.service(fmt.Sprintf("svc-%05d", w.serial)), metav1.CreateOptions{})
	} else {
		meta, err = w.client.DiscoveryV1().EndpointSlices(w.namespace).Create(ctx, w.slice(fmt.Sprintf("slice-%05d", w.serial)), metav1.CreateOptions{})
	}
	if err != nil {
		return Change{}, fmt.Errorf("create %s: %w", gvr.Resource, err)
	}
	w.live[gvr] = append(w.live[gvr], meta.GetName())
	return changeOf(gvr, meta), nil
}

func (w *Workload) update(ctx context.Context, gvr schema.GroupVersionResource, name string) (Change, error) {
	var meta metav1.Object
	var err error
	w.serial++
	mark := strconv.Itoa(w.serial)
	if gvr == Services {
		services := w.client.CoreV1().Services(w.namespace)
		object, getErr := services.Get(ctx, name, metav1.GetOptions{})
		if getErr != nil {
			return Change{}, getErr
		}
		object.Labels["interop/serial"] = mark
		meta, err = services.Update(ctx, object, metav1.UpdateOptions{})
	} else {
		slices := w.client.DiscoveryV1().EndpointSlices(w.namespace)
		object, getErr := slices.Get(ctx, name, metav1.GetOptions{})
		if getErr != nil {
			return Change{}, getErr
		}
		ready := w.random.IntN(2) == 0
		object.Endpoints[w.random.IntN(len(object.Endpoints))].Conditions.Ready = &ready
		object.Labels["interop/serial"] = mark
		meta, err = slices.Update(ctx, object, metav1.UpdateOptions{})
	}
	if err != nil {
		return Change{}, fmt.Errorf("update %s %s: %w", gvr.Resource, name, err)
	}
	return changeOf(gvr, meta), nil
}

func (w *Workload) remove(ctx context.Context, gvr schema.GroupVersionResource, index int) (Change, error) {
	name := w.live[gvr][index]
	var meta metav1.Object
	var err error
	if gvr == Services {
		meta, err = w.client.CoreV1().Services(w.namespace).Get(ctx, name, metav1.GetOptions{})
	} else {
		meta, err = w.client.DiscoveryV1().EndpointSlices(w.namespace).Get(ctx, name, metav1.GetOptions{})
	}
	if err != nil {
		return Change{}, err
	}
	w.mu.Lock()
	w.deleted[string(meta.GetUID())] = true
	w.mu.Unlock()
	if gvr == Services {
		err = w.client.CoreV1().Services(w.namespace).Delete(ctx, name, metav1.DeleteOptions{})
	} else {
		err = w.client.DiscoveryV1().EndpointSlices(w.namespace).Delete(ctx, name, metav1.DeleteOptions{})
	}
	if err != nil {
		return Change{}, fmt.Errorf("delete %s %s: %w", gvr.Resource, name, err)
	}
	w.live[gvr] = slices.Delete(w.live[gvr], index, index+1)
	change := changeOf(gvr, meta)
	change.Gone = true
	return change, nil
}

func changeOf(gvr schema.GroupVersionResource, meta metav1.Object) Change {
	return Change{Resource: gvr, Key: meta.GetNamespace() + "/" + meta.GetName(), UID: string(meta.GetUID()), ResourceVersion: meta.GetResourceVersion()}
}

// service returns a headless Service every second time: the kubelet's watch omits those by field selector, kube-proxy's
// by label selector.
func (w *Workload) service(name string) *corev1.Service {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": name},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80}},
		},
	}
	if w.serial%2 == 0 {
		service.Spec.ClusterIP = corev1.ClusterIPNone
	}
	return service
}

func (w *Workload) slice(name string) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: w.anyService()}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	portName, port, ready := "http", int32(8080), true
	slice.Ports = []discoveryv1.EndpointPort{{Name: &portName, Port: &port}}
	for i := range w.endpoints {
		node := fmt.Sprintf("elsewhere-%d", i%7)
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", 128+w.serial/250%100, w.serial%250, 1+i)},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready},
			NodeName:   &node,
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: w.namespace, Name: fmt.Sprintf("%s-%d", name, i)},
		})
	}
	return slice
}

// anyService returns the name of an existing Service, so that no slice is an orphan at its creation.
func (w *Workload) anyService() string {
	if names := w.live[Services]; len(names) > 0 {
		return names[len(names)-1]
	}
	return "none"
}
