package tests

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"yurt.test/interop/harness"
)

const (
	// soakNodesVariable enables TestNodesSoak and sets the number of nodes: a hub, a hollow kubelet and a hollow proxy
	// each.
	soakNodesVariable = "YURT_SOAK_NODES"
	// soakMinutesVariable is its duration.
	soakMinutesVariable = "YURT_SOAK_MINUTES"
	// soakStartPause is the delay between the starts of two nodes: all of them share this machine.
	soakStartPause = 500 * time.Millisecond
	// wholePoolCut is the time for which the whole pool is cut off. It is shorter than the controller's grace, because
	// no hub can forward heartbeats then.
	wholePoolCut = 20 * time.Second
)

// TestNodesSoak runs the kubelet's and kube-proxy's own code on many nodes of one pool. For half of the time all hubs
// but the leader's are cut off from the cloud, then all of them for a moment. Nodes stay Ready, no watch of pool data
// relists, and in the end every hub serves the cloud's data. It runs only on request.
func TestNodesSoak(t *testing.T) {
	nodes, lasts := soakSize(t)
	cloud := sharedCloud(t)
	ctx := testContext(t)
	kcm, err := cloud.StartControllerManager(ctx)
	must(t, err)
	defer func() { must(t, kcm.Stop()) }()
	w := newWorkload(t, cloud, 100)
	pool := startPool(t, cloud, harness.PoolOptions{Name: "soak", Hubs: nodes})
	leader := waitLeader(t, pool)
	var processes []*harness.Process
	for _, hub := range pool.Hubs {
		processes = append(processes, startHollow(t, cloud, hub, "kubelet", harness.KubeletAgent))
		processes = append(processes, startHollow(t, cloud, hub, "proxy", harness.KubeProxyAgent))
		time.Sleep(soakStartPause)
	}
	must(t, harness.Poll(ctx, 5*time.Minute, time.Second, func(ctx context.Context) error { return allReady(ctx, cloud, pool) }))
	mirrors := startMirrors(t, pool.Hubs[:2])
	waitEqual(t, cloud, mirrors, readyLimit)
	synced := time.Now()
	writes := startWriter(t, w, 200*time.Millisecond)
	stay := func(what string, length time.Duration) {
		t.Logf("%s for %s", what, length)
		for end := time.Now().Add(length); time.Now().Before(end); time.Sleep(time.Second) {
			if err := allReady(ctx, cloud, pool); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			for _, process := range processes {
				if !process.Running() {
					t.Fatalf("%s: a component ended:\n%s", what, process.Tail(20))
				}
			}
		}
	}
	stay("everything connected", lasts/4)
	for _, hub := range pool.Others(leader) {
		must(t, hub.Link.Cut())
	}
	stay("all but the leader cut off", lasts/2)
	must(t, pool.CutCloud())
	stay("the whole pool cut off", wholePoolCut)
	must(t, pool.ResumeCloud())
	stay("connected again", lasts/4)
	t.Logf("%d writes", writes.stop(t))
	waitEqual(t, cloud, mirrors, readyLimit)
	checkUnbroken(t, w, mirrors, synced)
	must(t, waitCoordinatorEqual(ctx, cloud, pool))
	forced, forwarded := 0.0, 0.0
	for _, hub := range pool.Hubs {
		metrics, err := hub.Metrics(ctx)
		must(t, err)
		relists, err := metrics.Sum("node_yurthub_collection_relists_forced_total")
		must(t, err)
		beats, err := metrics.Sum("node_yurthub_heartbeats_forwarded_total")
		must(t, err)
		forced, forwarded = forced+relists, forwarded+beats
	}
	t.Logf("%d nodes: %g relists forced, %g heartbeats carried by leaders", nodes, forced, forwarded)
	if forced != 0 {
		t.Errorf("%g watches had to list again", forced)
	}
	if forwarded == 0 {
		t.Error("void: no heartbeat was carried")
	}
}

// soakSize reads the size of the run; it skips the test without a request.
func soakSize(t *testing.T) (int, time.Duration) {
	t.Helper()
	nodes, err := strconv.Atoi(os.Getenv(soakNodesVariable))
	if err != nil || nodes < 2 {
		t.Skipf("%s says no number of nodes", soakNodesVariable)
	}
	minutes, err := strconv.Atoi(os.Getenv(soakMinutesVariable))
	if err != nil || minutes < 1 {
		minutes = 10
	}
	return nodes, time.Duration(minutes) * time.Minute
}

func allReady(ctx context.Context, cloud *harness.Cloud, pool *harness.Pool) error {
	var errs []error
	for _, hub := range pool.Hubs {
		if err := isReady(ctx, cloud, hub.Node); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", hub.Node, err))
		}
	}
	return errors.Join(errs...)
}
