package harness

import (
	"context"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodePoolLabel makes a Node a member of a pool.
const NodePoolLabel = "apps.openyurt.io/nodepool"

// CreateNode creates a Node that is a member of a pool.
func (c *Cloud) CreateNode(ctx context.Context, name, pool string) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		NodePoolLabel: pool, corev1.LabelHostname: name,
	}}}
	_, err := c.Client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	return err
}

// NodeKubeconfig is the identity of a node at server (the cloud, or a link to it).
func (c *Cloud) NodeKubeconfig(name, server string) (Kubeconfig, error) {
	pair, err := c.CA.IssueClient("system:node:"+name, "system:nodes")
	return Kubeconfig{Server: server, CA: c.CA.CertPEM, Identity: &pair}, err
}

// DelegateKubeconfig is the identity that forwards heartbeats of cut-off nodes.
func (c *Cloud) DelegateKubeconfig(server string) (Kubeconfig, error) {
	pair, err := c.CA.IssueClient("openyurt:yurt-coordinator:node-lease-proxy-client", DelegateGroup)
	return Kubeconfig{Server: server, CA: c.CA.CertPEM, Identity: &pair}, err
}

// ReaderToken returns a bearer token of a service account with the right to read everything: a caller with its own
// credential.
func (c *Cloud) ReaderToken(ctx context.Context) (string, error) {
	const namespace, name = "kube-system", "interop-reader"
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := c.Client.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return "", err
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
	}
	if _, err := c.Client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return "", err
	}
	request, err := c.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return request.Status.Token, nil
}

// NodeReady returns the status of a node's Ready condition and its last transition time.
func (c *Cloud) NodeReady(ctx context.Context, name string) (corev1.ConditionStatus, time.Time, error) {
	node, err := c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", time.Time{}, err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status, condition.LastTransitionTime.Time, nil
		}
	}
	return corev1.ConditionUnknown, time.Time{}, nil
}
