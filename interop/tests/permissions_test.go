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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"yurt.test/interop/harness"
)

// permission is one thing an identity may or may not do.
type permission struct {
	name    string
	allowed bool
	try     func(context.Context, kubernetes.Interface) error
}

// TestPermissions applies ../manifests to a real cloud and tries what hubs need and what they must not be able to do.
func TestPermissions(t *testing.T) {
	cloud := sharedCloud(t)
	ctx := testContext(t)
	const mine, other = "permitted-0", "permitted-1"
	for _, node := range []string{mine, other} {
		must(t, cloud.CreateNode(ctx, node, "permitted"))
		must(t, createLease(ctx, cloud.Client, node))
	}
	identity, err := cloud.NodeKubeconfig(mine, cloud.URL)
	must(t, err)
	delegate, err := cloud.DelegateKubeconfig(cloud.URL)
	must(t, err)
	t.Run("Node", func(t *testing.T) { checkPermissions(t, identity, nodePermissions(mine, other)) })
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
	}
}

func delegatePermissions(other string) []permission {
	return []permission{
		{"GetLease", true, func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, other, metav1.GetOptions{})
			return err
		}},
		// While the mark is not there yet.
		{"RenewLeaseAsTheNode", false, func(ctx context.Context, c kubernetes.Interface) error { return renewLease(ctx, c, other) }},
		{"RenewLeaseForTheNode", true, func(ctx context.Context, c kubernetes.Interface) error {
			return patchLease(ctx, c, other, forwarded("{}"))
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

// checkPermissions tries everything as one identity. Roles and admission policies take effect a moment after they were
// applied, so a wrong answer is asked for again for a while.
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

// forwarded is a patch as the leader forwards a heartbeat, with this spec besides the time of renewal.
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

func patchLease(ctx context.Context, client kubernetes.Interface, node, patch string) error {
	leases := client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	_, err := leases.Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
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
