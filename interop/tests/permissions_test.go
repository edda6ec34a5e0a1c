package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"yurt.test/interop/harness"
)

// fieldManager is that of hubs that forward heartbeats.
const fieldManager = "yurthub"

// desiredPoolLabel is the label by which older controllers move nodes.
const desiredPoolLabel = "apps.openyurt.io/desired-nodepool"

// endOfTime is the last year that RFC 3339 can express.
var endOfTime = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// permission is one allowed or forbidden request of an identity.
type permission struct {
	name    string
	allowed bool
	try     func(context.Context, kubernetes.Interface) error
}

// TestPermissions applies ../manifests to a real cloud and tries the required and the forbidden requests of hubs.
func TestPermissions(t *testing.T) {
	cloud := sharedCloud(t)
	ctx := testContext(t)
	const mine, other, expected = "permitted-0", "permitted-1", "permitted-3"
	for _, node := range []string{mine, other} {
		must(t, cloud.CreateNode(ctx, node, "permitted"))
		must(t, createLease(ctx, cloud.Client, node))
	}
	must(t, expectNodes(ctx, cloud, map[string]string{expected: "permitted", "permitted-9": "other"}))
	// An upgrade. The entries must remain.
	must(t, cloud.ApplyManifest(ctx, "pool-rbac.yaml", nil))
	identity, err := cloud.NodeKubeconfig(mine, cloud.URL)
	must(t, err)
	newcomer, err := cloud.NodeKubeconfig(expected, cloud.URL)
	must(t, err)
	delegate, err := cloud.DelegateKubeconfig(cloud.URL)
	must(t, err)
	t.Run("Node", func(t *testing.T) { checkPermissions(t, identity, nodePermissions(mine, other)) })
	t.Run("Newcomer", func(t *testing.T) { checkPermissions(t, newcomer, newcomerPermissions(expected)) })
	t.Run("Delegate", func(t *testing.T) { checkPermissions(t, delegate, delegatePermissions(other)) })
}

func nodePermissions(mine, other string) []permission {
	all := metav1.ListOptions{Limit: 1}
	return []permission{
		{"ListServices", true, func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.CoreV1().Services("").List(ctx, all)
			return err
		}},
		{"ListEndpoints", true, func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.CoreV1().Endpoints("").List(ctx, all) //nolint:staticcheck // still pool-scope
			return err
		}},
		{"ListEndpointSlices", true, func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.DiscoveryV1().EndpointSlices("").List(ctx, all)
			return err
		}},
		{"ListPoolMembers", true, func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: harness.NodePoolLabel + "=permitted"})
			return err
		}},
		{"ListOwnConfiguration", true, func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.CoreV1().ConfigMaps("kube-system").List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=yurt-hub-cfg"})
			return err
		}},
		{"ListOtherConfiguration", false, func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.CoreV1().ConfigMaps("kube-system").List(ctx, all)
			return err
		}},
		{"RenewOwnLease", true, func(ctx context.Context, c kubernetes.Interface) error { return renewLease(ctx, c, mine) }},
		{"RenewOtherLease", false, func(ctx context.Context, c kubernetes.Interface) error { return renewLease(ctx, c, other) }},
		{"LabelItself", true, func(ctx context.Context, c kubernetes.Interface) error { return labelNode(ctx, c, mine, "colour", "") }},
		{"MoveToAnotherPool", false, func(ctx context.Context, c kubernetes.Interface) error {
			return labelNode(ctx, c, mine, harness.NodePoolLabel, "")
		}},
		{"MoveToAnotherPoolByStatus", false, func(ctx context.Context, c kubernetes.Interface) error {
			return labelNode(ctx, c, mine, harness.NodePoolLabel, "status")
		}},
		{"WishForAnotherPool", false, func(ctx context.Context, c kubernetes.Interface) error {
			return labelNode(ctx, c, mine, desiredPoolLabel, "")
		}},
	}
}

// newcomerPermissions are those of a node that registers itself. The ConfigMap expects it in the pool "permitted".
func newcomerPermissions(name string) []permission {
	register := func(label, pool string) func(context.Context, kubernetes.Interface) error {
		return func(ctx context.Context, c kubernetes.Interface) error {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{label: pool}}}
			_, err := c.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		}
	}
	return []permission{
		{"RegisterInAnotherPool", false, register(harness.NodePoolLabel, "other")},
		{"WishForAnotherPool", false, register(desiredPoolLabel, "other")},
		{"RegisterInItsPool", true, register(harness.NodePoolLabel, "permitted")},
		{"RegisterWithoutPool", true, register("colour", "blue")},
	}
}

// expectNodes sets the pool in which each node may register: in the manifest, which is applied again.
func expectNodes(ctx context.Context, cloud *harness.Cloud, pools map[string]string) error {
	return cloud.ApplyManifest(ctx, "node-registrations.yaml", func(object *unstructured.Unstructured) error {
		return unstructured.SetNestedStringMap(object.Object, pools, "data")
	})
}

func delegatePermissions(other string) []permission {
	return []permission{
		{"GetLease", true, func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, other, metav1.GetOptions{})
			return err
		}},
		// Before the annotation exists.
		{"RenewLeaseAsTheNode", false, func(ctx context.Context, c kubernetes.Interface) error { return renewLease(ctx, c, other) }},
		{"RenewLeaseForTheNode", true, func(ctx context.Context, c kubernetes.Interface) error {
			return patchLease(ctx, c, other, forwarded("{}"))
		}},
		{"RenewLeaseWithoutFieldManager", false, func(ctx context.Context, c kubernetes.Interface) error {
			return patchLeaseAs(ctx, c, other, forwardedAt(time.Now(), nil), "")
		}},
		{"RenewLeaseIntoTheFuture", false, func(ctx context.Context, c kubernetes.Interface) error {
			return patchLease(ctx, c, other, forwardedAt(time.Now().Add(time.Minute), nil))
		}},
		{"RenewLeaseForEver", false, func(ctx context.Context, c kubernetes.Interface) error {
			return patchLease(ctx, c, other, forwardedAt(endOfTime, nil))
		}},
		{"RenewLeaseForEverWithOwnNotes", false, func(ctx context.Context, c kubernetes.Interface) error {
			return patchLease(ctx, c, other, forwardedAt(endOfTime, notes(fieldManager, "coordination.k8s.io/v1")))
		}},
		{"RenewLeaseForEverWithNotesOfAnotherVersion", false, func(ctx context.Context, c kubernetes.Interface) error {
			return patchLease(ctx, c, other, forwardedAt(endOfTime, notes(fieldManager, "coordination.k8s.io/v1beta1")))
		}},
		{"RenewLeaseForEverWithoutNotes", false, func(ctx context.Context, c kubernetes.Interface) error {
			return patchLease(ctx, c, other, forwardedAt(endOfTime, []any{map[string]any{}}))
		}},
		{"RenewLeaseForEverAsSomebodyNoted", false, func(ctx context.Context, c kubernetes.Interface) error {
			return patchLeaseAs(ctx, c, other, forwardedAt(endOfTime, notes("somebody", "coordination.k8s.io/v1")), fieldManager)
		}},
		{"RenewLeaseIntoThePast", false, func(ctx context.Context, c kubernetes.Interface) error {
			return patchLease(ctx, c, other, forwardedAt(time.Now().Add(-time.Hour), nil))
		}},
		{"TakeTheTimeOff", false, func(ctx context.Context, c kubernetes.Interface) error {
			return patchLease(ctx, c, other, `{"spec":{"renewTime":null}}`)
		}},
		{"TakeTheMarkOff", false, func(ctx context.Context, c kubernetes.Interface) error {
			return patchLease(ctx, c, other, fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, delegateAnnotation))
		}},
		{"GiveLeaseToAnotherNode", false, func(ctx context.Context, c kubernetes.Interface) error {
			return patchLease(ctx, c, other, forwarded(`{"holderIdentity":"permitted-0"}`))
		}},
		{"MakeLeaseLast", false, func(ctx context.Context, c kubernetes.Interface) error {
			return patchLease(ctx, c, other, forwarded(`{"leaseDurationSeconds":86400}`))
		}},
		{"AnnotateLease", false, func(ctx context.Context, c kubernetes.Interface) error {
			return patchLease(ctx, c, other, fmt.Sprintf(`{"metadata":{"annotations":{%q:"true","a":"b"}}}`, delegateAnnotation))
		}},
		{"CreateLease", false, func(ctx context.Context, c kubernetes.Interface) error { return createLease(ctx, c, "permitted-2") }},
		{"DeleteLease", false, func(ctx context.Context, c kubernetes.Interface) error {
			return c.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(ctx, other, metav1.DeleteOptions{})
		}},
		{"GetNode", false, func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.CoreV1().Nodes().Get(ctx, other, metav1.GetOptions{})
			return err
		}},
		{"ListServices", false, func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.CoreV1().Services("").List(ctx, metav1.ListOptions{})
			return err
		}},
	}
}

// checkPermissions tries every request as one identity. Roles and admission policies take effect a moment after they
// were applied, so a wrong response is retried for a while.
func checkPermissions(t *testing.T, identity harness.Kubeconfig, permissions []permission) {
	client, err := kubernetes.NewForConfig(identity.Config("permissions"))
	must(t, err)
	for _, p := range permissions {
		t.Run(p.name, func(t *testing.T) {
			must(t, harness.Poll(testContext(t), 15*time.Second, 100*time.Millisecond, func(ctx context.Context) error {
				err := p.try(ctx, client)
				switch {
				case p.allowed:
					return err
				case err == nil:
					return fmt.Errorf("%s is allowed and must not be", p.name)
				case !apierrors.IsForbidden(err):
					return fmt.Errorf("%s failed otherwise than by being forbidden: %w", p.name, err)
				}
				return nil
			}))
		})
	}
}

func createLease(ctx context.Context, client kubernetes.Interface, node string) error {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &node}}
	_, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx, lease, metav1.CreateOptions{})
	return err
}

func renewLease(ctx context.Context, client kubernetes.Interface, node string) error {
	return patchLease(ctx, client, node, fmt.Sprintf(`{"spec":{"renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro)))
}

// forwarded is the leader's patch of a forwarded heartbeat, with this spec in addition to renewTime.
func forwarded(spec string) string {
	fields := map[string]any{}
	if err := json.Unmarshal([]byte(spec), &fields); err != nil {
		panic(err)
	}
	fields["renewTime"] = time.Now().UTC().Format(metav1.RFC3339Micro)
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{delegateAnnotation: "true"}},
		"spec":     fields,
	})
	if err != nil {
		panic(err)
	}
	return string(patch)
}

// forwardedAt is a forwarded heartbeat with this renewTime and, if given, these managed fields.
func forwardedAt(renewed time.Time, managedFields []any) string {
	metadata := map[string]any{"annotations": map[string]string{delegateAnnotation: "true"}}
	if managedFields != nil {
		metadata["managedFields"] = managedFields
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": metadata,
		"spec":     map[string]any{"renewTime": renewed.UTC().Format(metav1.RFC3339Micro)},
	})
	if err != nil {
		panic(err)
	}
	return string(patch)
}

// notes are managed fields with a write of this manager at the end of time.
func notes(manager, version string) []any {
	return []any{map[string]any{
		"manager": manager, "operation": "Update", "apiVersion": version, "time": endOfTime.Format(time.RFC3339),
		"fieldsType": "FieldsV1", "fieldsV1": map[string]any{"f:spec": map[string]any{"f:renewTime": map[string]any{}}},
	}}
}

func patchLease(ctx context.Context, client kubernetes.Interface, node, patch string) error {
	return patchLeaseAs(ctx, client, node, patch, fieldManager)
}

func patchLeaseAs(ctx context.Context, client kubernetes.Interface, node, patch, manager string) error {
	leases := client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	_, err := leases.Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: manager})
	return err
}

// labelNode sets a label to a value it never had before.
func labelNode(ctx context.Context, client kubernetes.Interface, node, label, subresource string) error {
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"v%d"}}}`, label, time.Now().UnixNano())
	var subresources []string
	if subresource != "" {
		subresources = append(subresources, subresource)
	}
	_, err := client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}, subresources...)
	return err
}
