package tests

import (
	"context"
	"crypto/x509"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"yurt.test/interop/harness"
)

const (
	// signedLife is the lifetime of signed certificates. The signer dates them five minutes back, so that a renewal,
	// after 70 to 90 % of the lifetime, is due at once or after a few seconds.
	signedLife = 40 * time.Second
	// kubeletSigner is the signer whose requests kube-controller-manager approves.
	kubeletSigner = "--hub-cert-signer=kubernetes.io/kube-apiserver-client-kubelet"
)

// TestJoin joins hubs with a bootstrap token at a real control plane. kube-controller-manager signs cluster-info and
// the certificates: at once with the kubelet's signer, after `kubectl certificate approve` with the default one. The
// hub renews its certificate while a watch through it continues.
func TestJoin(t *testing.T) {
	t.Parallel() // it mostly waits, and has a cloud of its own
	cloud := ownCloud(t, harness.JoiningFlag)
	ctx := testContext(t)
	flags, err := cloud.SigningFlags(signedLife)
	must(t, err)
	_, err = cloud.StartControllerManager(ctx, flags...)
	must(t, err)
	token, err := cloud.AllowJoining(ctx)
	must(t, err)
	approved := startJoiningHub(t, cloud, "joined-0", token, kubeletSigner)
	asked := startJoiningHub(t, cloud, "joined-1", token)
	first := waitCertificate(t, approved, nil)
	if first.Subject.CommonName != "system:node:joined-0" || !slices.Contains(first.Subject.Organization, "system:nodes") {
		t.Errorf("the certificate is %s", first.Subject)
	}
	if end := first.NotAfter.UTC().Format(time.RFC3339); !strings.Contains(approved.Process.Tail(100), end) {
		t.Errorf("the log does not name the certificate's end %s", end)
	}
	served := watchThrough(t, approved)
	waitCertificate(t, approved, first.SerialNumber)
	// Nodes may not write Services: the administrator does, and the watch of before the renewal shows it.
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "after-renewal"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	_, err = cloud.Client.CoreV1().Services("default").Create(ctx, service, metav1.CreateOptions{})
	must(t, err)
	waitAdded(t, served, "after-renewal")
	node, err := nodeClient(approved)
	must(t, err)
	// The cloud accepts the renewed certificate.
	_, err = node.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: approved.Node}}, metav1.CreateOptions{})
	must(t, err)
	approve(t, cloud)
	certificate := waitCertificate(t, asked, nil)
	if !slices.Contains(certificate.Subject.Organization, "openyurt:yurthub") {
		t.Errorf("the certificate is %s", certificate.Subject)
	}
}

// startJoiningHub starts a hub that joins, until the test ends.
func startJoiningHub(t *testing.T, cloud *harness.Cloud, node, token string, flags ...string) *harness.Hub {
	t.Helper()
	hub, err := cloud.NewJoiningHub(node, token, flags...)
	must(t, err)
	must(t, hub.Start(testContext(t)))
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(hub.Process.Tail(25))
		}
	})
	return hub
}

// waitCertificate waits until the hub has a certificate with another serial number than the given one.
func waitCertificate(t *testing.T, hub *harness.Hub, other *big.Int) *x509.Certificate {
	t.Helper()
	var certificate *x509.Certificate
	must(t, harness.PollProcess(testContext(t), hub.Process, readyLimit, 100*time.Millisecond, func(context.Context) error {
		var err error
		certificate, err = hub.Certificate()
		if err == nil && other != nil && certificate.SerialNumber.Cmp(other) == 0 {
			err = fmt.Errorf("%s has not renewed its certificate of %s", hub.Node, certificate.NotBefore)
		}
		return err
	}))
	return certificate
}

// nodeClient is a component of the node at its hub.
func nodeClient(hub *harness.Hub) (kubernetes.Interface, error) {
	access, err := hub.SecureProxy()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(access.Config(harness.KubeletAgent))
}

// watchThrough opens a watch of Services at the hub, once it serves them.
func watchThrough(t *testing.T, hub *harness.Hub) watch.Interface {
	t.Helper()
	var opened watch.Interface
	must(t, harness.PollProcess(testContext(t), hub.Process, readyLimit, 100*time.Millisecond, func(context.Context) error {
		client, err := nodeClient(hub)
		if err != nil {
			return err
		}
		opened, err = client.CoreV1().Services("").Watch(testContext(t), metav1.ListOptions{})
		return err
	}))
	t.Cleanup(opened.Stop)
	return opened
}

// waitAdded reads a watch until an object with this name is added.
func waitAdded(t *testing.T, opened watch.Interface, name string) {
	t.Helper()
	for {
		select {
		case event, ok := <-opened.ResultChan():
			if !ok || event.Type == watch.Error {
				t.Fatalf("the watch ended before %s: %v", name, event.Object)
			}
			if object, isObject := event.Object.(metav1.Object); isObject && object.GetName() == name {
				return
			}
		case <-time.After(readyLimit):
			t.Fatalf("no %s in the watch", name)
		}
	}
}

// approve approves every pending request with kubectl.
func approve(t *testing.T, cloud *harness.Cloud) {
	t.Helper()
	binary, err := harness.StockBinary("kubectl")
	must(t, err)
	tool := kubectl{t: t, binary: binary, kubeconfig: cloud.AdminFile, home: testDir(t)}
	list, err := cloud.Client.CertificatesV1().CertificateSigningRequests().List(testContext(t), metav1.ListOptions{})
	must(t, err)
	pending := 0
	for _, request := range list.Items {
		if request.Spec.SignerName == "kubernetes.io/kube-apiserver-client" && len(request.Status.Conditions) == 0 {
			tool.run("certificate", "approve", request.Name)
			pending++
		}
	}
	if pending == 0 {
		t.Errorf("no request waits for approval: %v", list.Items)
	}
}
