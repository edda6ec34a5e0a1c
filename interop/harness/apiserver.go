package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// serviceRange is the range of ClusterIPs, large enough for thousands of test Services.
const serviceRange = "10.96.0.0/16"

// advertisedAddress is the cloud's advertised address. Endpoints may not hold a loopback address, so it is from the
// range reserved for documentation; nothing connects to it.
const advertisedAddress = "192.0.2.1"

// auditPolicy logs caller and request, with the start of every long-running request.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`

// kubeletClient is the name of kube-apiserver at kubelets.
const kubeletClient = "kube-apiserver-kubelet-client"

// startAPIServer starts kube-apiserver on c's etcd and waits until it is ready. A restart uses the same files and
// flags.
func (c *Cloud) startAPIServer(ctx context.Context) error {
	path, err := StockBinary("kube-apiserver")
	if err != nil {
		return err
	}
	if c.apiServerCommand.Path == "" {
		args, err := c.apiServerArgs(c.etcdURL)
		if err != nil {
			return err
		}
		c.apiServerCommand = Command{Name: "kube-apiserver", Path: path, Dir: c.Dir, Args: args}
	}
	c.apiServer, err = Start(c.apiServerCommand)
	if err != nil {
		return err
	}
	return c.waitAPIServer(ctx, c.apiServer, c.URL)
}

func (c *Cloud) waitAPIServer(ctx context.Context, server *Process, url string) error {
	client, err := httpClientFor(c.Admin)
	if err != nil {
		return err
	}
	return PollProcess(ctx, server, 2*time.Minute, 100*time.Millisecond, func(ctx context.Context) error {
		return ExpectOK(ctx, client, url+"/readyz")
	})
}

// apiServerArgs writes the files kube-apiserver needs and returns its flags.
func (c *Cloud) apiServerArgs(etcdURL string) ([]string, error) {
	serving, err := c.CA.IssueServer("kube-apiserver", "127.0.0.1", "localhost",
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", advertisedAddress)
	if err != nil {
		return nil, err
	}
	cert, key, err := serving.Write(c.Dir, "kube-apiserver")
	if err != nil {
		return nil, err
	}
	private, public, err := writeSigningKey(c.Dir)
	if err != nil {
		return nil, err
	}
	c.signingKeyFile, c.verifyingKeyFile = private, public
	kubelets, err := c.kubeletClientFlags()
	if err != nil {
		return nil, err
	}
	policy := filepath.Join(c.Dir, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o644); err != nil {
		return nil, err
	}
	return slices.Concat([]string{
		"--etcd-servers=" + etcdURL,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.Port),
		"--advertise-address=" + advertisedAddress,
		"--tls-cert-file=" + cert, "--tls-private-key-file=" + key,
		"--client-ca-file=" + c.CAFile,
		"--service-cluster-ip-range=" + serviceRange,
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--audit-policy-file=" + policy, "--audit-log-path=" + c.auditLog, "--audit-log-maxsize=4096",
		"--profiling=false",
	}, kubelets, c.TokenFlags(), c.flags), nil
}

// kubeletClientFlags write the certificate with which kube-apiserver asks kubelets for logs and streams, and return the
// flags. It accepts kubelets' certificates of the cloud's CA only.
func (c *Cloud) kubeletClientFlags() ([]string, error) {
	client, err := c.CA.IssueClient(kubeletClient, "system:masters")
	if err != nil {
		return nil, err
	}
	cert, key, err := client.Write(c.Dir, "kube-apiserver-kubelet-client")
	if err != nil {
		return nil, err
	}
	return []string{"--kubelet-client-certificate=" + cert, "--kubelet-client-key=" + key,
		"--kubelet-certificate-authority=" + c.CAFile, "--kubelet-preferred-address-types=InternalIP"}, nil
}

// TokenFlags make a server sign tokens of service accounts, and accept tokens signed by the cloud.
func (c *Cloud) TokenFlags() []string {
	return []string{"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.verifyingKeyFile, "--service-account-signing-key-file=" + c.signingKeyFile}
}
