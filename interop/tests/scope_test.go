package tests

import (
	"context"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"yurt.test/interop/harness"
)

// scopeKind is a kind of the cloud, and the right of nodes to read it.
const scopeKind = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.scope.example.com}
spec:
  group: scope.example.com
  scope: Namespaced
  names: {plural: gadgets, singular: gadget, kind: Gadget, listKind: GadgetBag}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: nodes-read-gadgets}
rules: [{apiGroups: [scope.example.com], resources: [gadgets], verbs: [get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: nodes-read-gadgets}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: nodes-read-gadgets}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:nodes"}]
`

var gadgets = schema.GroupVersionResource{Group: "scope.example.com", Version: "v1", Resource: "gadgets"}

// scopeLimit is the maximum delay of a change of the list: the hubs poll the coordinator every 5 s.
const scopeLimit = 60 * time.Second

// TestPoolScopeAtRuntime lists a custom kind in ConfigMap yurt-hub-cfg while a pool works. Leader, coordinator and
// follower replicate it with the cloud's resourceVersions, serve it while the cloud is unreachable, and remove it
// again.
func TestPoolScopeAtRuntime(t *testing.T) {
	cloud := sharedCloud(t)
	ctx := testContext(t)
	must(t, cloud.Apply(ctx, []byte(scopeKind)))
	t.Cleanup(func() { dropScope(cloud) })
	must(t, harness.Poll(ctx, scopeLimit, 200*time.Millisecond, func(ctx context.Context) error { return putGadget(ctx, cloud, "a", "1") }))
	pool := startPool(t, cloud, harness.PoolOptions{Name: "scope", Hubs: 2})
	leader := waitLeader(t, pool)
	var mirrors []*harness.Mirror
	for _, hub := range pool.Hubs {
		resources := append([]schema.GroupVersionResource{gadgets}, harness.PoolScope...)
		mirrors = append(mirrors, startMirror(t, harness.MirrorOptions{Name: hub.Node, Server: hub.Proxy(), UserAgent: harness.PlainAgent, Resources: resources}))
	}
	waitSynced(t, mirrors)

	must(t, writeScope(ctx, cloud, `[{"Group":"scope.example.com","Version":"v1","Resource":"gadgets"},{"Group":"","Version":"v1","Resource":"secrets"}]`))
	waitGadgets(t, pool, func(hub *harness.Hub, c harness.Collection) error {
		want := "coordinator"
		if hub == leader {
			want = "cloud"
		}
		if !c.Complete || !c.Fresh || c.Source != want {
			return fmt.Errorf("%s has gadgets as %+v", hub.Node, c)
		}
		return nil
	})
	must(t, putGadget(ctx, cloud, "b", "2"))
	waitSameGadgets(t, cloud, pool)
	want, err := cloudContent(ctx, cloud, gadgets)
	must(t, err)

	must(t, pool.CutCloud())
	must(t, harness.Poll(ctx, scopeLimit, 100*time.Millisecond, func(ctx context.Context) error {
		for _, hub := range pool.Hubs {
			if err := hubHasGadgets(ctx, hub, want); err != nil {
				return err
			}
		}
		return nil
	}))
	for _, hub := range pool.Hubs {
		client, err := dynamic.NewForConfig(hub.Proxy().Config(harness.PlainAgent))
		must(t, err)
		list, err := client.Resource(gadgets).List(ctx, metav1.ListOptions{})
		must(t, err)
		if list.GetKind() != "GadgetBag" {
			t.Errorf("%s lists gadgets as %s", hub.Node, list.GetKind())
		}
	}
	must(t, pool.ResumeCloud())
	waitLeader(t, pool)
	must(t, putGadget(ctx, cloud, "a", "3"))
	waitSameGadgets(t, cloud, pool)
	for _, mirror := range mirrors {
		must(t, harness.Poll(ctx, scopeLimit, 50*time.Millisecond, func(ctx context.Context) error {
			want, err := cloudContent(ctx, cloud, gadgets)
			if err != nil {
				return err
			}
			return sameContent(mirror.Name, want, mirror.Content(gadgets))
		}))
		if lines := mirror.Backwards(); len(lines) > 0 {
			t.Errorf("%s went backwards: %v", mirror.Name, lines)
		}
		for _, deleted := range mirror.Deletes() {
			if deleted.Resource == gadgets.Resource {
				t.Errorf("%s received a deletion that did not happen: %+v", mirror.Name, deleted)
			}
		}
	}

	must(t, writeScope(ctx, cloud, `[]`))
	waitGadgets(t, pool, nil)
	admin, err := dynamic.NewForConfig(pool.Coordinator.Admin.Config("interop"))
	must(t, err)
	// The leader drops its own replica before the coordinator has the new list.
	must(t, harness.Poll(ctx, scopeLimit, 50*time.Millisecond, func(ctx context.Context) error {
		if _, err := admin.Resource(gadgets).List(ctx, metav1.ListOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the coordinator still answers for gadgets: %v", err)
		}
		return nil
	}))
	must(t, putGadget(ctx, cloud, "c", "4"))
	waitSameGadgets(t, cloud, pool)
}

func putGadget(ctx context.Context, cloud *harness.Cloud, name, size string) error {
	patch := fmt.Appendf(nil, `{"apiVersion":"scope.example.com/v1","kind":"Gadget","metadata":{"name":%q},"spec":{"size":%q}}`, name, size)
	force := true
	_, err := cloud.Dynamic.Resource(gadgets).Namespace("default").Patch(ctx, name, types.ApplyPatchType, patch,
		metav1.PatchOptions{FieldManager: "interop", Force: &force})
	return err
}

func writeScope(ctx context.Context, cloud *harness.Cloud, list string) error {
	config := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": "yurt-hub-cfg", "namespace": "kube-system"},
		"data":     map[string]any{"pool_scope_resources": list},
	}}
	text, err := config.MarshalJSON()
	if err != nil {
		return err
	}
	return cloud.Apply(ctx, text)
}

// dropScope removes everything that could affect other tests.
func dropScope(cloud *harness.Cloud) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = cloud.Dynamic.Resource(harness.ConfigMaps).Namespace("kube-system").Delete(ctx, "yurt-hub-cfg", metav1.DeleteOptions{})
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	_ = cloud.Dynamic.Resource(crds).Delete(ctx, "gadgets.scope.example.com", metav1.DeleteOptions{})
}

// waitGadgets waits until every hub's replica of gadgets satisfies check or, without a check, until there is none.
func waitGadgets(t *testing.T, pool *harness.Pool, check func(*harness.Hub, harness.Collection) error) {
	t.Helper()
	must(t, harness.Poll(testContext(t), scopeLimit, 100*time.Millisecond, func(ctx context.Context) error {
		for _, hub := range pool.Hubs {
			state, err := hub.State(ctx)
			if err != nil {
				return err
			}
			collection, held := state.Collections["gadgets.scope.example.com"]
			switch {
			case check == nil && held:
				return fmt.Errorf("%s still has gadgets as %+v", hub.Node, collection)
			case check == nil:
			default:
				if err := check(hub, collection); err != nil {
					return err
				}
			}
		}
		return nil
	}))
}

// waitSameGadgets waits until every hub lists the cloud's objects.
func waitSameGadgets(t *testing.T, cloud *harness.Cloud, pool *harness.Pool) {
	t.Helper()
	must(t, harness.Poll(testContext(t), scopeLimit, 50*time.Millisecond, func(ctx context.Context) error {
		want, err := cloudContent(ctx, cloud, gadgets)
		if err != nil {
			return err
		}
		for _, hub := range pool.Hubs {
			if err := hubHasGadgets(ctx, hub, want); err != nil {
				return err
			}
		}
		return nil
	}))
}

func hubHasGadgets(ctx context.Context, hub *harness.Hub, want map[string]*unstructured.Unstructured) error {
	client, err := dynamic.NewForConfig(hub.Proxy().Config(harness.PlainAgent))
	if err != nil {
		return err
	}
	have, err := listAll(ctx, client, gadgets)
	if err != nil {
		return err
	}
	return sameContent(hub.Node, want, have)
}
