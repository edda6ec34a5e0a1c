package tests

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"yurt.test/interop/harness"
)

// standalone starts a separate coordinator as a small control plane, until the test ends.
func standalone(t *testing.T, flags ...string) *harness.Coordinator {
	t.Helper()
	return standaloneIn(t, ".", flags...)
}

// standaloneIn is [standalone] for a test with several: each has its own folder.
func standaloneIn(t *testing.T, folder string, flags ...string) *harness.Coordinator {
	t.Helper()
	dir := filepath.Join(testDir(t), folder)
	must(t, os.MkdirAll(dir, 0o755))
	coordinator, err := harness.StartStandalone(testContext(t), dir, flags...)
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(coordinator.Process.Tail(40))
		}
		if err := coordinator.Process.Stop(); err != nil {
			t.Errorf("stopping the coordinator: %v", err)
		}
	})
	return coordinator
}

// TestNewKubectl runs the newest kubectl, built from its module, through everyday commands.
// TestClientGoAgainstCoordinator runs the installed one.
// Conformance: 1.30, 1.31, 1.32, 1.33, 3.C07, 3.C08
func TestNewKubectl(t *testing.T) {
	coordinator := standalone(t)
	binary, err := harness.StockBinary("kubectl")
	must(t, err)
	checkKubectl(t, binary, coordinator.AdminFile)
	k := kubectl{t: t, binary: binary, kubeconfig: coordinator.AdminFile, home: testDir(t)}
	if out := k.run("explain", "pods.spec.containers"); !strings.Contains(out, "image") {
		t.Errorf("explain gives %q", out)
	}
	k.create("waited-for", "yes")
	k.run("wait", "configmap/waited-for", "--for=jsonpath={.data.k}=yes", "--timeout=10s")
	if out := k.run("get", "events"); !strings.Contains(out, "No resources found") {
		t.Errorf("get events gives %q", out)
	}
	k.run("describe", "configmap", "waited-for")
	k.run("delete", "configmap", "waited-for", "--wait")
	if out := k.run("auth", "can-i", "create", "pods"); !strings.Contains(out, "yes") {
		t.Errorf("auth can-i gives %q", out)
	}
}

// TestControllerRuntimeCache reads through controller-runtime's cache and waits for every change in it.
// Conformance: 7.01, 7.02, 7.03
func TestControllerRuntimeCache(t *testing.T) {
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	coordinator := standalone(t)
	config := coordinator.Admin.Config("controller-runtime-test")
	typed, err := kubernetes.NewForConfig(config)
	must(t, err)
	cache, err := ctrlcache.New(config, ctrlcache.Options{})
	must(t, err)
	go func() { _ = cache.Start(ctx) }()
	names := make(chan string, 100)
	informer, err := cache.GetInformer(ctx, &corev1.ConfigMap{})
	must(t, err)
	_, err = informer.AddEventHandler(handlerOf(names))
	must(t, err)
	if !cache.WaitForCacheSync(ctx) {
		t.Fatal("the cache does not sync")
	}
	for i := range 20 {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c-%02d", i)}}
		_, err := typed.CoreV1().ConfigMaps("default").Create(ctx, object, metav1.CreateOptions{})
		must(t, err)
	}
	must(t, harness.Poll(ctx, readyLimit, 20*time.Millisecond, func(ctx context.Context) error {
		var list corev1.ConfigMapList
		if err := cache.List(ctx, &list, client.InNamespace("default")); err != nil {
			return err
		}
		if len(list.Items) != 20 || len(names) < 20 {
			return fmt.Errorf("%d of 20 in the cache, %d events", len(list.Items), len(names))
		}
		return nil
	}))
	var one corev1.ConfigMap
	must(t, cache.Get(ctx, client.ObjectKey{Namespace: "default", Name: "c-07"}, &one))
}

// TestPythonClient runs the official Python client: typed objects, patches, watches.
func TestPythonClient(t *testing.T) {
	coordinator := standalone(t)
	python, err := harness.Python(testContext(t), "kubernetes==37.0.2")
	if err != nil {
		t.Skipf("no Python to run the client with: %v", err)
	}
	script, err := filepath.Abs("python_client.py")
	must(t, err)
	cmd := exec.CommandContext(testContext(t), python, script)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+coordinator.AdminFile)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "all held\n") {
		t.Fatalf("%v\n%s", err, out)
	}
}

// handlerOf passes on the names of added objects.
func handlerOf(names chan<- string) toolscache.ResourceEventHandlerFuncs {
	return toolscache.ResourceEventHandlerFuncs{AddFunc: func(object any) {
		if named, ok := object.(metav1.Object); ok {
			names <- named.GetName()
		}
	}}
}

// TestKubeRs runs kube-rs's watcher with lists and with streaming lists; its streams end in the middle and are resumed.
// Conformance: 7.30, 7.34
func TestKubeRs(t *testing.T) {
	coordinator := standalone(t)
	dir, err := filepath.Abs("../kube-rs")
	must(t, err)
	// `cargo run` builds it when needed, in its own target folder.
	cmd := exec.CommandContext(testContext(t), "cargo", "run", "--quiet")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+coordinator.AdminFile, "CARGO_TARGET_DIR="+filepath.Join(dir, "target"))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "all held\n") {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestCoreDNS answers queries from the coordinator's Services and EndpointSlices, follows their changes, and continues
// when the coordinator restarts.
// Conformance: 5.23
func TestCoreDNS(t *testing.T) {
	ctx := testContext(t)
	coordinator := standalone(t)
	typed, err := kubernetes.NewForConfig(coordinator.Admin.Config("coredns-test"))
	must(t, err)
	headless := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec:       corev1.ServiceSpec{ClusterIP: "None", Ports: []corev1.ServicePort{{Port: 80}}},
	}
	_, err = typed.CoreV1().Services("default").Create(ctx, headless, metav1.CreateOptions{})
	must(t, err)
	ready := true
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "db-1", Labels: map[string]string{discoveryv1.LabelServiceName: "db"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.7.7.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}},
		},
	}
	slice, err = typed.DiscoveryV1().EndpointSlices("default").Create(ctx, slice, metav1.CreateOptions{})
	must(t, err)
	resolver := startCoreDNS(t, coordinator)
	waitAddresses(t, resolver, "10.7.7.1")
	slice.Endpoints[0].Addresses = []string{"10.7.7.2"}
	slice, err = typed.DiscoveryV1().EndpointSlices("default").Update(ctx, slice, metav1.UpdateOptions{})
	must(t, err)
	waitAddresses(t, resolver, "10.7.7.2")
	_, err = coordinator.Restart(ctx)
	must(t, err)
	slice.Endpoints[0].Addresses = []string{"10.7.7.3"}
	_, err = typed.DiscoveryV1().EndpointSlices("default").Update(ctx, slice, metav1.UpdateOptions{})
	must(t, err)
	waitAddresses(t, resolver, "10.7.7.3")
}

// startCoreDNS runs CoreDNS on the coordinator until the test ends; the returned resolver uses no other server.
func startCoreDNS(t *testing.T, coordinator *harness.Coordinator) *net.Resolver {
	t.Helper()
	port, err := harness.FreePort()
	must(t, err)
	process, err := harness.StartCoreDNS(testDir(t), coordinator.Admin, port)
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(process.Tail(40))
		}
		_ = process.Stop()
	})
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "udp", fmt.Sprintf("127.0.0.1:%d", port))
	}}
}

func waitAddresses(t *testing.T, resolver *net.Resolver, want string) {
	t.Helper()
	must(t, harness.Poll(testContext(t), 30*time.Second, 100*time.Millisecond, func(ctx context.Context) error {
		found, err := resolver.LookupHost(ctx, "db.default.svc.cluster.local.")
		if err == nil && (len(found) != 1 || found[0] != want) {
			err = fmt.Errorf("db is at %v, want %s", found, want)
		}
		return err
	}))
}
