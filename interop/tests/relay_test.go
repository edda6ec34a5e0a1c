package tests

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"yurt.test/interop/harness"
)

const (
	// relayMissed is the maximum number of consecutive acknowledged heartbeats missing in the cloud with a relay,
	// regardless of which hub dies. A heartbeat is acknowledged once a relay has carried it.
	relayMissed = 1
	// forwardMissed is the same without a relay: the dead leader's lease expires, the next leader uses its first read
	// as a baseline, and forwards the heartbeat after that.
	forwardMissed = int((leaseDuration+2*harness.RenewInterval)/harness.RenewInterval) + 1
	// afterRelay and afterLeader are the observation times of the cloud's Lease after a hub was killed.
	afterRelay  = 2*harness.RenewInterval + 5*time.Second
	afterLeader = leaseDuration + 3*harness.RenewInterval
)

// TestHeartbeatRelay cuts a node off the cloud and kills hubs that carry its heartbeats, with SIGKILL: first the
// leader, then its relay. NodeRestriction and the node lifecycle controller are the real ones. With the relay the Lease
// in the cloud is renewed without interruption, and NodeStatus arrives. Without it the leader's death leaves a gap,
// shorter than the controller's grace.
func TestHeartbeatRelay(t *testing.T) {
	t.Run("Relay", func(t *testing.T) { testHeartbeatRelay(t, "relay", true, relayMissed, afterRelay) })
	t.Run("Forwarding", func(t *testing.T) { testHeartbeatRelay(t, "norelay", false, forwardMissed, afterLeader) })
}

func testHeartbeatRelay(t *testing.T, name string, relay bool, missed int, length time.Duration) {
	cloud := sharedCloud(t)
	ctx := testContext(t)
	kcm, err := cloud.StartControllerManager(ctx)
	must(t, err)
	defer func() { must(t, kcm.Stop()) }()
	options := harness.PoolOptions{Name: name, Hubs: 4, Relay: relay}
	if !relay {
		options.HubArgs = []string{"--enable-relay=false"}
	}
	pool := startPool(t, cloud, options)
	leader := waitLeader(t, pool)
	kubelets := map[string]*harness.Kubelet{}
	for _, hub := range pool.Hubs {
		kubelet, err := harness.StartKubelet(ctx, hub.Node, hub.Proxy(), runtime.ContentTypeProtobuf)
		must(t, err)
		defer kubelet.Stop()
		kubelets[hub.Node] = kubelet
	}
	node := pool.Others(leader)[0]
	must(t, harness.Poll(ctx, readyLimit, 100*time.Millisecond, func(ctx context.Context) error {
		return errors.Join(isReady(ctx, cloud, node.Node), isBeating(ctx, cloud, node.Node, "", kubelets[node.Node]))
	}))
	// Each hub's relay address is published with its kubelet's first heartbeat.
	time.Sleep(harness.RenewInterval / 2)
	must(t, node.Link.Cut())
	must(t, harness.Poll(ctx, readyLimit, 100*time.Millisecond, func(ctx context.Context) error {
		return isBeating(ctx, cloud, node.Node, "true", kubelets[node.Node])
	}))

	through := relayedThrough(t, node)
	if relay == (through == "") {
		t.Fatalf("%s relays through %q", node.Node, through)
	}
	if relay {
		checkStatusArrives(t, cloud, node, kubelets[node.Node])
	}
	t.Logf("%s leads, %s is cut off and relays through %q", leader.Node, node.Node, through)
	leader.Process.Kill()
	checkGap(t, cloud, node, kubelets[node.Node], "the leader was killed", missed, length)
	if relay {
		through := relayedThrough(t, node)
		hubOf(pool, through).Process.Kill()
		checkGap(t, cloud, node, kubelets[node.Node], through+", which it relayed through, was killed", missed, length)
		checkStatusArrives(t, cloud, node, kubelets[node.Node])
	}
	if failures := kubelets[node.Node].Failures(); len(failures) > 0 {
		t.Errorf("the kubelet saw %d failed renewals: %q", len(failures), failures)
	}
	must(t, node.Link.Resume())
	must(t, harness.Poll(ctx, readyLimit, 100*time.Millisecond, func(ctx context.Context) error {
		return isBeating(ctx, cloud, node.Node, "", kubelets[node.Node])
	}))
}

func relayedThrough(t *testing.T, hub *harness.Hub) string {
	t.Helper()
	state, err := hub.State(testContext(t))
	must(t, err)
	return state.Relay.Through
}

func hubOf(pool *harness.Pool, node string) *harness.Hub {
	for _, hub := range pool.Hubs {
		if hub.Node == node {
			return hub
		}
	}
	panic("no hub of " + node)
}

// checkGap observes Lease and Node in the cloud for a while. It asserts a maximum of missing acknowledged heartbeats, a
// renewTime that only advances, and a Ready node.
func checkGap(t *testing.T, cloud *harness.Cloud, hub *harness.Hub, kubelet *harness.Kubelet, what string, missed int, length time.Duration) {
	t.Helper()
	ctx := testContext(t)
	lease, err := nodeLease(ctx, cloud, hub.Node)
	must(t, err)
	last, seen := lease.Spec.RenewTime.Time, lease.Spec.RenewTime.Time
	var longest time.Duration
	count := 0
	for end := time.Now().Add(length); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		must(t, isReady(ctx, cloud, hub.Node))
		beats := kubelet.Renewals()
		lease, err := nodeLease(ctx, cloud, hub.Node)
		must(t, err)
		if err := isCarried(hub.Node, beats, lease.Spec.RenewTime.Time, missed); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		switch renewed := lease.Spec.RenewTime.Time; {
		case renewed.Before(last):
			t.Fatalf("renewTime went back from %s to %s", last, renewed)
		case renewed.After(last):
			longest, last, seen = max(longest, time.Since(seen)), renewed, time.Now()
			count++
		}
	}
	longest = max(longest, time.Since(seen))
	t.Logf("%s: %d renewals in %s, the longest gap was %s", what, count, length, longest.Round(10*time.Millisecond))
}

// checkStatusArrives posts the NodeStatus and waits for it in the cloud.
func checkStatusArrives(t *testing.T, cloud *harness.Cloud, hub *harness.Hub, kubelet *harness.Kubelet) {
	t.Helper()
	ctx := testContext(t)
	before := metav1.Now().Rfc3339Copy()
	must(t, kubelet.PostStatus(ctx))
	node, err := cloud.Client.CoreV1().Nodes().Get(ctx, hub.Node, metav1.GetOptions{})
	must(t, err)
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && !condition.LastHeartbeatTime.Before(&before) {
			return
		}
	}
	must(t, fmt.Errorf("the status of %s did not arrive: %v", hub.Node, node.Status.Conditions))
}
