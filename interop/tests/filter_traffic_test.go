package tests

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"yurt.test/interop/harness"
)

const (
	// namespaceVariable is set in the network namespace of TestKubeProxyTopology.
	namespaceVariable = "YURT_TRAFFIC_NAMESPACE"
	// trafficLimit bounds the time from a change until the traffic follows it. An object whose RV is the position reaches
	// kube-proxy with the next bookmark of the cloud, after a minute (docs/adr/0035).
	trafficLimit = 100 * time.Second
	// trafficRequests are the connections of one look: none of three endpoints is missed by chance.
	trafficRequests = 60
	// trafficPort is the port of the backends.
	trafficPort = 8080
)

// traffic is a pool in a network namespace of its own, with a kube-proxy behind one of its hubs and one backend per node.
type traffic struct {
	cloud *harness.Cloud
	pool  *harness.Pool
	proxy *harness.KubeProxy
	// hub is the one of kube-proxy, no leader at first.
	hub *harness.Hub
	// far is a node of no pool at first.
	far     string
	address string // of the Service
}

// TestKubeProxyTopology runs a stock kube-proxy behind a hub. Connections to a Service with a topology reach only the
// endpoints that the topology allows: before and after changes of the annotation, of a node's label, of the NodePool and of
// the configuration; with a link to the cloud, through the coordinator, and without the cloud, also after a restart of hub
// and kube-proxy with empty packet filters.
//
// It needs root and iptables: it runs again in a new network namespace, where everything has the addresses it wants.
func TestKubeProxyTopology(t *testing.T) {
	if os.Getenv(namespaceVariable) == "" {
		inNamespace(t)
		return
	}
	run(t, "ip", "link", "set", "lo", "up")
	run(t, "ip", "route", "add", "10.96.0.0/12", "dev", "lo")
	x := startTraffic(t)
	all := []string{x.pool.NodeName(0), x.pool.NodeName(1), x.far}
	own, here := all[:2], []string{x.hub.Node}
	x.reaches(t, "no topology", all)
	for _, way := range []string{"online", "through the coordinator"} {
		if way != "online" {
			must(t, x.hub.Link.Cut())
		}
		x.annotate(t, "openyurt.io/nodepool")
		x.reaches(t, way+": topology of the pool", own)
		x.annotate(t, "kubernetes.io/hostname")
		x.reaches(t, way+": topology of the node", here)
		x.annotate(t, "openyurt.io/nodepool")
		x.label(t, x.far, x.pool.Name)
		x.reaches(t, way+": a node joined", all)
		x.label(t, x.far, "elsewhere")
		x.reaches(t, way+": the node left", own)
		x.nodePool(t, all...)
		x.reaches(t, way+": the NodePool names the node", all)
		x.nodePool(t)
		x.reaches(t, way+": the labels decide again", own)
		x.annotate(t, "")
		x.reaches(t, way+": no topology again", all)
	}
	must(t, x.hub.Link.Resume())
	x.annotate(t, "openyurt.io/nodepool")
	x.reaches(t, "the link is back", own)
	x.configure(t, map[string]string{"servicetopology": "-kube-proxy"})
	x.reaches(t, "the filter does not bind kube-proxy", all)
	x.configure(t, nil)
	x.reaches(t, "the filter binds kube-proxy", own)

	must(t, x.pool.CutCloud())
	x.hub.Process.Kill()
	must(t, x.hub.Start(testContext(t)))
	x.reaches(t, "offline: the hub restarted", own)
	x.proxy.Process.Kill()
	run(t, "iptables", "-t", "nat", "-F")
	run(t, "iptables", "-t", "nat", "-X")
	if reached := x.look(); len(reached) > 0 {
		t.Fatalf("without rules the Service reaches %v", reached)
	}
	must(t, x.proxy.Start(testContext(t)))
	x.reaches(t, "offline: kube-proxy restarted", own)
	must(t, x.pool.ResumeCloud())
	x.annotate(t, "")
	x.reaches(t, "the cloud is back", all)
}

// inNamespace runs the test again in a new network namespace.
func inNamespace(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("iptables"); err != nil || os.Geteuid() != 0 {
		t.Skip("kube-proxy needs root and iptables (Debian package iptables)")
	}
	command := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=20m")
	command.Env = append(os.Environ(), namespaceVariable+"=1")
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	must(t, command.Run())
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if output, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, output)
	}
}

func startTraffic(t *testing.T) *traffic {
	t.Helper()
	ctx := testContext(t)
	x := &traffic{cloud: sharedCloud(t), far: "far-0"}
	must(t, x.cloud.Apply(ctx, []byte(nodePoolCRD)))
	x.allow(t)
	must(t, x.cloud.CreateNode(ctx, x.far, "elsewhere"))
	x.pool = startPool(t, x.cloud, harness.PoolOptions{Name: "near", Hubs: 2})
	x.hub = x.pool.Others(waitLeader(t, x.pool))[0]
	backends := map[string]string{}
	for i, node := range []string{x.pool.NodeName(0), x.pool.NodeName(1), x.far} {
		backends[node] = fmt.Sprintf("10.7.0.%d", i+1)
		run(t, "ip", "address", "add", backends[node]+"/32", "dev", "lo")
		x.addressOf(t, node, backends[node])
		serve(t, node, backends[node])
	}
	x.service(t, backends)
	proxy, err := harness.StartKubeProxy(ctx, x.pool.Dir, x.hub.Node, x.hub.Proxy())
	must(t, err)
	x.proxy = proxy
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(x.proxy.Process.Tail(30))
		}
		x.proxy.Process.Kill()
	})
	return x
}

// allow grants the rights of kube-proxy, which acts as its node.
func (x *traffic) allow(t *testing.T) {
	t.Helper()
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "interop-node-proxier"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-proxier"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "system:nodes"}},
	}
	_, err := x.cloud.Client.RbacV1().ClusterRoleBindings().Create(testContext(t), binding, metav1.CreateOptions{})
	must(t, err)
}

// addressOf sets the address in a node's status: kube-proxy waits for its own.
func (x *traffic) addressOf(t *testing.T, node, address string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"status":{"addresses":[{"type":"InternalIP","address":%q}]}}`, address)
	_, err := x.cloud.Client.CoreV1().Nodes().Patch(testContext(t), node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	must(t, err)
}

// serve answers every request at an address with a name.
func serve(t *testing.T, name, address string) {
	t.Helper()
	listener, err := net.Listen("tcp", fmt.Sprintf("%s:%d", address, trafficPort))
	must(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) })}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
}

// service creates the Service and its slice with one endpoint per node.
func (x *traffic) service(t *testing.T, backends map[string]string) {
	t.Helper()
	ctx := testContext(t)
	service, err := x.cloud.Client.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(trafficPort)}}},
	}, metav1.CreateOptions{})
	must(t, err)
	x.address = service.Spec.ClusterIP
	name, port, ready := "http", int32(trafficPort), true
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "web", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
	}
	for _, node := range slices.Sorted(maps.Keys(backends)) {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{backends[node]}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	_, err = x.cloud.Client.DiscoveryV1().EndpointSlices("default").Create(ctx, slice, metav1.CreateOptions{})
	must(t, err)
}

// reaches waits until connections to the Service reach exactly these nodes.
func (x *traffic) reaches(t *testing.T, when string, nodes []string) {
	t.Helper()
	want, started := slices.Sorted(slices.Values(nodes)), time.Now()
	err := harness.Poll(testContext(t), trafficLimit, 50*time.Millisecond, func(context.Context) error {
		if reached := x.look(); !slices.Equal(reached, want) {
			return fmt.Errorf("the Service reaches %v, want %v", reached, want)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	t.Logf("%s: reaches %v after %s", when, want, time.Since(started).Round(10*time.Millisecond))
}

// look connects to the Service and returns the nodes that answered.
func (x *traffic) look() []string {
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	reached := map[string]bool{}
	for range trafficRequests {
		response, err := client.Get("http://" + x.address + "/")
		if err != nil {
			break // the packet filter has no rule yet
		}
		name, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err == nil {
			reached[string(name)] = true
		}
	}
	return slices.Sorted(maps.Keys(reached))
}

func (x *traffic) annotate(t *testing.T, keys string) {
	t.Helper()
	value := "null"
	if keys != "" {
		value = fmt.Sprintf("%q", keys)
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, topologyKeys, value)
	_, err := x.cloud.Client.CoreV1().Services("default").Patch(testContext(t), "web", types.MergePatchType, patch, metav1.PatchOptions{})
	must(t, err)
}

func (x *traffic) label(t *testing.T, node, pool string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, harness.NodePoolLabel, pool)
	_, err := x.cloud.Client.CoreV1().Nodes().Patch(testContext(t), node, types.MergePatchType, patch, metav1.PatchOptions{})
	must(t, err)
}

// nodePool creates the NodePool with these nodes, or deletes it.
func (x *traffic) nodePool(t *testing.T, nodes ...string) {
	t.Helper()
	must(t, setNodePool(testContext(t), x.cloud, x.pool.Name, nodes))
}

// setNodePool creates or changes a NodePool, so that its status names the nodes; without nodes it is deleted.
func setNodePool(ctx context.Context, cloud *harness.Cloud, name string, nodes []string) error {
	client := cloud.Dynamic.Resource(nodePools)
	if len(nodes) == 0 {
		if err := client.Delete(ctx, name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	}
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps.openyurt.io/v1beta2", "kind": "NodePool", "metadata": map[string]any{"name": name}}}
	if _, err := client.Create(ctx, object, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	named := make([]any, 0, len(nodes))
	for _, node := range nodes {
		named = append(named, node)
	}
	object.Object["status"] = map[string]any{"nodes": named}
	_, err := client.ApplyStatus(ctx, name, object, metav1.ApplyOptions{FieldManager: "interop", Force: true})
	return err
}

func (x *traffic) configure(t *testing.T, data map[string]string) {
	t.Helper()
	must(t, setHubConfig(testContext(t), x.cloud, data))
}

// setHubConfig replaces the hubs' ConfigMap, or deletes it without data.
func setHubConfig(ctx context.Context, cloud *harness.Cloud, data map[string]string) error {
	maps := cloud.Client.CoreV1().ConfigMaps("kube-system")
	if data == nil {
		if err := maps.Delete(ctx, hubConfig, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	}
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: hubConfig}, Data: data}
	_, err := maps.Update(ctx, config, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = maps.Create(ctx, config, metav1.CreateOptions{})
	}
	return err
}
