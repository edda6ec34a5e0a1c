package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"yurt.test/interop/harness"
)

// The filters' rules a second time, in Go, over the unfiltered objects of the cloud. docs/FILTERS.md has them in words.

const (
	topologyKeys = "openyurt.io/topologyKeys"
	listenPools  = "nodeport.openyurt.io/listen"
	hubConfig    = "yurt-hub-cfg"
)

// nodePools is the resource of OpenYurt's NodePools.
var nodePools = schema.GroupVersionResource{Group: "apps.openyurt.io", Version: "v1beta2", Resource: "nodepools"}

// nodePoolCRD declares NodePools with the fields that the hubs read.
const nodePoolCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: nodepools.apps.openyurt.io}
spec:
  group: apps.openyurt.io
  scope: Cluster
  names: {kind: NodePool, listKind: NodePoolList, plural: nodepools, singular: nodepool}
  versions:
  - name: v1beta2
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// view is what one component sees of a resource: normalised JSON by "<namespace>/<name>".
type view map[string]string

// world is the state of the cloud that the filters depend on.
type world struct {
	pool string
	// members are the nodes of the pool.
	members map[string]bool
	// config is the data of the hubs' ConfigMap.
	config  map[string]string
	objects map[schema.GroupVersionResource]map[string]runtime.Object
}

// readWorld reads the cloud. The caller is the only writer.
func readWorld(ctx context.Context, cloud *harness.Cloud, pool string, config map[string]string) (*world, error) {
	w := &world{pool: pool, members: map[string]bool{}, config: config, objects: map[schema.GroupVersionResource]map[string]runtime.Object{}}
	for _, gvr := range harness.PoolScope {
		objects, err := listTyped(ctx, cloud.Client, gvr)
		if err != nil {
			return nil, err
		}
		w.objects[gvr] = objects
	}
	nodePool, err := cloud.Dynamic.Resource(nodePools).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + pool})
	if err != nil {
		return nil, err
	}
	for _, item := range nodePool.Items {
		named, _, _ := unstructured.NestedStringSlice(item.Object, "status", "nodes")
		for _, node := range named {
			w.members[node] = true
		}
	}
	if len(w.members) > 0 {
		return w, nil
	}
	nodes, err := cloud.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: harness.NodePoolLabel + "=" + pool})
	if err != nil {
		return nil, err
	}
	for _, node := range nodes.Items {
		w.members[node.Name] = true
	}
	return w, nil
}

// listTyped lists a pool-scope resource in all namespaces, by key.
func listTyped(ctx context.Context, client kubernetes.Interface, gvr schema.GroupVersionResource) (map[string]runtime.Object, error) {
	objects := map[string]runtime.Object{}
	switch gvr {
	case harness.Services:
		list, err := client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			objects[metaKey(&list.Items[i])] = &list.Items[i]
		}
	case harness.Endpoints:
		list, err := client.CoreV1().Endpoints("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			objects[metaKey(&list.Items[i])] = &list.Items[i]
		}
	default:
		list, err := client.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			objects[metaKey(&list.Items[i])] = &list.Items[i]
		}
	}
	return objects, nil
}

func metaKey(object metav1.Object) string { return object.GetNamespace() + "/" + object.GetName() }

// binds reports whether a filter applies to a component's reads of a resource.
func (w *world) binds(filter, component, resource string) bool {
	bound := component == "kube-proxy"
	for entry := range strings.SplitSeq(w.config[filter], ",") {
		name, rest, isExact := strings.Cut(strings.TrimSpace(entry), "/")
		switch {
		case name == "-"+component:
			bound = false
		case name == component && isExact:
			of, _, _ := strings.Cut(rest, "#")
			bound = bound || of == resource
		case name == component:
			bound = true
		}
	}
	return bound
}

// sees returns what a component on the node sees of a resource, without RVs.
func (w *world) sees(node, component string, gvr schema.GroupVersionResource) view {
	seen := view{}
	for key, object := range w.objects[gvr] {
		if shown := w.show(node, component, gvr, key, object); shown != nil {
			seen[key] = normal(shown, false)
		}
	}
	return seen
}

// show returns the object as the component sees it, nil if it does not.
func (w *world) show(node, component string, gvr schema.GroupVersionResource, key string, object runtime.Object) runtime.Object {
	if service, ok := object.(*corev1.Service); ok {
		if w.hidesService(component, service) {
			return nil
		}
		return object
	}
	if !w.binds("servicetopology", component, gvr.Resource) {
		return object
	}
	name := key
	if slice, ok := object.(*discoveryv1.EndpointSlice); ok {
		label := slice.Labels[discoveryv1.LabelServiceName]
		if label == "" {
			return object
		}
		name = slice.Namespace + "/" + label
	}
	service, isKnown := w.objects[harness.Services][name]
	if !isKnown {
		if len(nodesOf(object)) == 0 {
			return object
		}
		return nil
	}
	switch service.(*corev1.Service).Annotations[topologyKeys] {
	case "kubernetes.io/hostname":
		return restricted(object, func(on string) bool { return on == node })
	case "openyurt.io/nodepool", "kubernetes.io/zone":
		return restricted(object, func(on string) bool { return w.members[on] })
	default:
		return object
	}
}

func (w *world) hidesService(component string, service *corev1.Service) bool {
	isBalancer := service.Spec.Type == corev1.ServiceTypeLoadBalancer
	if isBalancer && w.binds("discardcloudservice", component, "services") {
		return true
	}
	listen, isLimited := service.Annotations[listenPools]
	hasPort := isBalancer || service.Spec.Type == corev1.ServiceTypeNodePort
	return isLimited && hasPort && w.binds("nodeportisolation", component, "services") &&
		!slices.Contains(strings.Split(listen, ","), w.pool)
}

// nodesOf are the nodes of an object's endpoints.
func nodesOf(object runtime.Object) []string {
	var nodes []string
	each(object, func(node *string) bool {
		nodes = append(nodes, *node)
		return true
	})
	return nodes
}

// restricted returns a copy with the endpoints on nodes that are near.
func restricted(object runtime.Object, isNear func(string) bool) runtime.Object {
	object = object.DeepCopyObject()
	each(object, func(node *string) bool { return isNear(*node) })
	return object
}

// each keeps the endpoints for which keep returns true.
func each(object runtime.Object, keep func(node *string) bool) {
	switch object := object.(type) {
	case *discoveryv1.EndpointSlice:
		object.Endpoints = slices.DeleteFunc(object.Endpoints, func(e discoveryv1.Endpoint) bool { return !keep(orEmpty(e.NodeName)) })
	case *corev1.Endpoints:
		for i := range object.Subsets {
			subset := &object.Subsets[i]
			for _, list := range []*[]corev1.EndpointAddress{&subset.Addresses, &subset.NotReadyAddresses} {
				*list = slices.DeleteFunc(*list, func(a corev1.EndpointAddress) bool {
					return !keep(orEmpty(a.NodeName))
				})
			}
		}
		object.Subsets = slices.DeleteFunc(object.Subsets, func(s corev1.EndpointSubset) bool {
			return len(s.Addresses)+len(s.NotReadyAddresses) == 0
		})
	}
}

func orEmpty(text *string) *string {
	if text == nil {
		return new(string)
	}
	return text
}

// normal is the object as JSON, equal for all encodings in which it can arrive.
func normal(object runtime.Object, withVersion bool) string {
	object = object.DeepCopyObject()
	meta := object.(metav1.Object)
	if !withVersion {
		meta.SetResourceVersion("")
	}
	object.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	switch object := object.(type) {
	case *discoveryv1.EndpointSlice:
		if len(object.Endpoints) == 0 {
			object.Endpoints = nil
		}
	case *corev1.Endpoints:
		if len(object.Subsets) == 0 {
			object.Subsets = nil
		}
	}
	text, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// normals normalises objects by key.
func normals(objects map[string]runtime.Object, withVersion bool) view {
	seen := view{}
	for key, object := range objects {
		seen[key] = normal(object, withVersion)
	}
	return seen
}

// differs describes the first difference of two views; nil if they are equal.
func differs(what string, want, have view) error {
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if _, isThere := have[key]; !isThere {
			return fmt.Errorf("%s: %s is missing, want %s", what, key, want[key])
		}
		if have[key] != want[key] {
			return fmt.Errorf("%s: %s is\n%s\nwant\n%s", what, key, have[key], want[key])
		}
	}
	for _, key := range slices.Sorted(maps.Keys(have)) {
		if _, isWanted := want[key]; !isWanted {
			return fmt.Errorf("%s: %s is there and should not be: %s", what, key, have[key])
		}
	}
	return nil
}
