package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"yurt.test/interop/harness"
)

const (
	// poolObjects is the number of Services, and of EndpointSlices, in the tests of a pool.
	poolObjects = 200
	// syncOperations is the number of random changes that TestPoolSync follows one by one.
	syncOperations = 500
)

// TestPoolSync follows 500 random changes through three hubs and then checks their cost in the cloud's audit log.
// Conformance: 7.09, 7.45, 7.74
func TestPoolSync(t *testing.T) {
	cloud := sharedCloud(t)
	ctx := testContext(t)
	w := newWorkload(t, cloud, poolObjects)
	mark, err := cloud.AuditMark()
	must(t, err)
	pool := startPool(t, cloud, harness.PoolOptions{Name: "sync", Hubs: 3})
	leader := waitLeader(t, pool)
	mirrors := startMirrors(t, pool.Hubs)
	mirrors = append(mirrors, startTokenMirror(t, cloud, leader))
	synced := time.Now()
	waitEqual(t, cloud, mirrors, syncLimit)

	var delays []time.Duration
	for i := range syncOperations {
		change, err := w.Step(ctx)
		must(t, err)
		delay, err := waitShown(ctx, mirrors, change)
		if err != nil {
			t.Fatalf("operation %d: %v", i, err)
		}
		delays = append(delays, delay)
	}
	waitEqual(t, cloud, mirrors, syncLimit)
	slices.Sort(delays)
	t.Logf("a change was in %d informers after %s (median), %s (p99), %s (worst)", len(mirrors),
		delays[len(delays)/2], delays[len(delays)*99/100], delays[len(delays)-1])

	checkUnbroken(t, w, mirrors, synced)
	checkOneListOneWatch(t, cloud, mark, pool.Name+"-")
	checkStates(t, pool, leader)
	logMembership(t, cloud, mark, pool)
	t.Logf("the pool read %d KiB from the cloud", pool.CloudBytes()>>10)
}

// logMembership logs the cost of following the pool's membership, which is separate from the pool-scope resources.
func logMembership(t *testing.T, cloud *harness.Cloud, mark harness.AuditMark, pool *harness.Pool) {
	t.Helper()
	requests, err := cloud.PoolRequests(mark, func(r harness.AuditRequest) bool {
		return harness.ByNodes(pool.Name+"-")(r) && (r.Resource == "nodes" || r.Resource == "nodepools.apps.openyurt.io")
	})
	must(t, err)
	t.Logf("membership: %d requests: %v", len(requests), requests)
}

// startTokenMirror reads through a hub with its own credential and an unknown User-Agent.
func startTokenMirror(t *testing.T, cloud *harness.Cloud, hub *harness.Hub) *harness.Mirror {
	t.Helper()
	token, err := cloud.ReaderToken(testContext(t))
	must(t, err)
	server := hub.Proxy()
	server.Token = token
	mirror := startMirror(t, harness.MirrorOptions{Name: hub.Node + "-token", Server: server, UserAgent: "informer-test/1", Resources: harness.PoolScope})
	waitSynced(t, []*harness.Mirror{mirror})
	return mirror
}

// checkStates asserts that every hub reports the same leader, epoch and generation, and complete, fresh collections.
func checkStates(t *testing.T, pool *harness.Pool, leader *harness.Hub) {
	t.Helper()
	must(t, harness.Poll(testContext(t), syncLimit, 50*time.Millisecond, func(ctx context.Context) error {
		want, err := leader.State(ctx)
		if err != nil {
			return err
		}
		if want.Leader == "" || want.Epoch == "" || want.Generation == "" {
			return fmt.Errorf("%s reports leader %q, epoch %q, generation %q", leader.Node, want.Leader, want.Epoch, want.Generation)
		}
		for _, hub := range pool.Hubs {
			state, err := hub.State(ctx)
			if err != nil {
				return err
			}
			if state.Leader != want.Leader || state.Generation != want.Generation {
				return fmt.Errorf("%s reports leader %q, generation %q; the leader itself %q, %q", hub.Node, state.Leader, state.Generation, want.Leader, want.Generation)
			}
			for _, gvr := range harness.PoolScope {
				name := gvr.GroupResource().String()
				if c := state.Collections[name]; !c.Complete || !c.Fresh || c.RV == "" {
					return fmt.Errorf("%s reports %s as %+v", hub.Node, name, c)
				}
			}
		}
		return nil
	}))
}

// ownAddress is an address of this machine that is not loopback. The filters lead pods to no other.
func ownAddress(t *testing.T) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	must(t, err)
	for _, address := range addresses {
		if network, ok := address.(*net.IPNet); ok && network.IP.To4() != nil && network.IP.IsGlobalUnicast() {
			return network.IP.String()
		}
	}
	t.Skip("SKIPPED: this machine has no IPv4 address but loopback")
	return ""
}

// TestMasterServiceFilter tests the first filter through client-go: the kubelet gets the hub's secure port, an
// unfiltered component gets the cloud's data.
func TestMasterServiceFilter(t *testing.T) {
	address := ownAddress(t)
	cloud := sharedCloud(t)
	pool := startPool(t, cloud, harness.PoolOptions{Name: "master", Hubs: 1, ProxyAddress: address})
	waitLeader(t, pool)
	hub := pool.Hubs[0]
	kubelet := startMirror(t, harness.MirrorOptions{Name: "kubelet", Server: hub.Proxy(), UserAgent: harness.KubeletAgent, Resources: harness.PoolScope})
	plain := startMirror(t, harness.MirrorOptions{Name: "plain", Server: hub.Proxy(), UserAgent: harness.PlainAgent, Resources: harness.PoolScope})
	waitSynced(t, []*harness.Mirror{kubelet, plain})
	waitEqual(t, cloud, []*harness.Mirror{plain}, syncLimit)
	seen, real := masterService(t, kubelet), masterService(t, plain)
	if seen.ResourceVersion != real.ResourceVersion {
		t.Errorf("the kubelet sees resourceVersion %s, the cloud has %s", seen.ResourceVersion, real.ResourceVersion)
	}
	for _, port := range seen.Spec.Ports {
		if port.Name == "https" && int(port.Port) != hub.SecurePort {
			t.Errorf("the kubelet sees https port %d, want the hub's secure port %d", port.Port, hub.SecurePort)
		}
	}
	if seen.Spec.ClusterIP != address {
		t.Errorf("the kubelet sees address %s, want the hub's %s (the cloud has %s)", seen.Spec.ClusterIP, address, real.Spec.ClusterIP)
	}
}

func masterService(t *testing.T, mirror *harness.Mirror) corev1.Service {
	t.Helper()
	object := mirror.Get(harness.Services, "default/kubernetes")
	if object == nil {
		t.Fatalf("%s does not see default/kubernetes", mirror.Name)
	}
	text, err := object.MarshalJSON()
	must(t, err)
	var service corev1.Service
	must(t, json.Unmarshal(text, &service))
	return service
}

// TestServiceTopologyFilter asserts that kube-proxy gets only its own node's endpoints of a Service with that topology.
// An unfiltered component on the same hub gets all of them.
func TestServiceTopologyFilter(t *testing.T) {
	cloud := sharedCloud(t)
	ctx := testContext(t)
	w := newWorkload(t, cloud, 3)
	pool := startPool(t, cloud, harness.PoolOptions{Name: "topo", Hubs: 2})
	waitLeader(t, pool)
	hub := pool.Hubs[0]
	local := localSlice(t, cloud, w, pool)
	proxy := startMirror(t, harness.MirrorOptions{Name: "kube-proxy", Server: hub.Proxy(), UserAgent: harness.KubeProxyAgent, Resources: harness.PoolScope})
	plain := startMirror(t, harness.MirrorOptions{Name: "plain", Server: hub.Proxy(), UserAgent: harness.PlainAgent, Resources: harness.PoolScope})
	waitSynced(t, []*harness.Mirror{proxy, plain})
	for _, want := range []struct {
		mirror    *harness.Mirror
		endpoints int
	}{{proxy, 1}, {plain, 2}} {
		must(t, harness.Poll(ctx, syncLimit, 20*time.Millisecond, func(context.Context) error {
			object := want.mirror.Get(harness.EndpointSlices, local)
			if object == nil {
				return fmt.Errorf("%s does not see %s", want.mirror.Name, local)
			}
			endpoints, _ := object.Object["endpoints"].([]any)
			if len(endpoints) != want.endpoints {
				return fmt.Errorf("%s sees %d endpoints, want %d: %v", want.mirror.Name, len(endpoints), want.endpoints, endpoints)
			}
			return nil
		}))
	}
}

// localSlice makes a Service restricted to the own node, and its slice with one endpoint on each of two nodes.
func localSlice(t *testing.T, cloud *harness.Cloud, w *harness.Workload, pool *harness.Pool) string {
	t.Helper()
	ctx := testContext(t)
	services, err := cloud.Client.CoreV1().Services(w.Namespace()).List(ctx, metav1.ListOptions{Limit: 1})
	must(t, err)
	annotate := []byte(`{"metadata":{"annotations":{"openyurt.io/topologyKeys":"kubernetes.io/hostname"}}}`)
	name := services.Items[0].Name
	_, err = cloud.Client.CoreV1().Services(w.Namespace()).Patch(ctx, name, types.MergePatchType, annotate, metav1.PatchOptions{})
	must(t, err)
	slices, err := cloud.Client.DiscoveryV1().EndpointSlices(w.Namespace()).List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + name})
	must(t, err)
	slice := &slices.Items[0]
	slice.Endpoints = slice.Endpoints[:2]
	for i := range slice.Endpoints {
		node := pool.NodeName(i)
		slice.Endpoints[i].NodeName = &node
	}
	_, err = cloud.Client.DiscoveryV1().EndpointSlices(w.Namespace()).Update(ctx, slice, metav1.UpdateOptions{})
	must(t, err)
	return w.Namespace() + "/" + slice.Name
}
