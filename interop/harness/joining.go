package harness

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// JoiningFlag makes kube-apiserver accept bootstrap tokens.
const JoiningFlag = "--enable-bootstrap-token-auth=true"

// joiningPermissions are those that kubeadm creates for nodes that join with a token.
const joiningPermissions = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "kubeadm:kubelet-bootstrap"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:node-bootstrapper"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:bootstrappers:kubeadm:default-node-token"}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "kubeadm:node-autoapprove-bootstrap"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:certificates.k8s.io:certificatesigningrequests:nodeclient"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:bootstrappers:kubeadm:default-node-token"}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "kubeadm:node-autoapprove-certificate-rotation"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:nodes"}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: "kubeadm:bootstrap-signer-clusterinfo", namespace: kube-public}
rules: [{apiGroups: [""], resources: [configmaps], resourceNames: [cluster-info], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: "kubeadm:bootstrap-signer-clusterinfo", namespace: kube-public}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: "kubeadm:bootstrap-signer-clusterinfo"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: "system:anonymous"}]
`

// SigningFlags make kube-controller-manager sign tokens' cluster-info, and approve and sign certificate requests with
// the cloud's CA for the given time.
func (c *Cloud) SigningFlags(life time.Duration) ([]string, error) {
	key, err := encodeKey(c.CA.key)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(c.Dir, "ca.key")
	return []string{
		"--controllers=bootstrap-signer-controller,token-cleaner-controller",
		"--controllers=certificatesigningrequest-approving-controller,certificatesigningrequest-signing-controller",
		"--cluster-signing-cert-file=" + c.CAFile, "--cluster-signing-key-file=" + path, "--cluster-signing-duration=" + life.String(),
	}, os.WriteFile(path, key, 0o600)
}

// AllowJoining creates what `kubeadm init` and `kubeadm token create` create, waits until
// kube-controller-manager has signed cluster-info with the token, and returns the token.
func (c *Cloud) AllowJoining(ctx context.Context) (string, error) {
	const id, secret = "abcdef", "0123456789abcdef"
	if err := c.Apply(ctx, []byte(joiningPermissions)); err != nil {
		return "", err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters[""] = &clientcmdapi.Cluster{Server: c.URL, CertificateAuthorityData: c.CA.CertPEM}
	kubeconfig, err := clientcmd.Write(*config)
	if err != nil {
		return "", err
	}
	info := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cluster-info"}, Data: map[string]string{"kubeconfig": string(kubeconfig)}}
	if _, err := c.Client.CoreV1().ConfigMaps(metav1.NamespacePublic).Create(ctx, info, metav1.CreateOptions{}); err != nil {
		return "", err
	}
	token := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id}, Type: corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
			"auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
		}}
	if _, err = c.Client.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, token, metav1.CreateOptions{}); err != nil {
		return "", err
	}
	return id + "." + secret, Poll(ctx, time.Minute, 100*time.Millisecond, func(ctx context.Context) error {
		info, err := c.Client.CoreV1().ConfigMaps(metav1.NamespacePublic).Get(ctx, "cluster-info", metav1.GetOptions{})
		if err == nil && info.Data["jws-kubeconfig-"+id] == "" {
			err = fmt.Errorf("cluster-info is not signed with token %s yet", id)
		}
		return err
	})
}

// Pin is the hash of the CA's public key, as kubeadm prints it.
func (ca *CA) Pin() string {
	hash := sha256.Sum256(ca.cert.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(hash[:])
}

// NewJoiningHub prepares a hub that joins with a token and has no other credential. Further flags may be given.
func (c *Cloud) NewJoiningHub(node, token string, flags ...string) (*Hub, error) {
	dir := filepath.Join(c.Dir, "node-"+node)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	hub, err := c.newHub(node, dir, "", PoolOptions{Name: node})
	if err != nil {
		return nil, err
	}
	var args []string
	for _, arg := range hub.command.Args {
		if !strings.HasPrefix(arg, "--bootstrap-mode=") && !strings.HasPrefix(arg, "--kubeconfig=") {
			args = append(args, arg)
		}
	}
	hub.command.Args = append(append(args, "--join-token="+token, "--discovery-token-ca-cert-hash="+c.CA.Pin()), flags...)
	c.onStop(hub.Stop)
	return hub, os.Remove(filepath.Join(dir, node, "kubelet.kubeconfig"))
}

// Certificate reads the client certificate that the hub got.
func (h *Hub) Certificate() (*x509.Certificate, error) {
	text, err := os.ReadFile(filepath.Join(h.root(), "pki", "yurthub-current.pem"))
	if err != nil {
		return nil, err
	}
	return parseCertificate(text)
}
