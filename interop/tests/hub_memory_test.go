package tests

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"yurt.test/interop/harness"
)

const (
	// hubMemory is the limit of the hub's cgroup, bytes.
	hubMemory = 32 << 20
	// fullPods is the number of pods of a full node.
	fullPods = 110
)

// TestHubMemory gives a hub 32 MiB, in a memory cgroup, and the reads of a full node: 330 watched Secrets and
// ConfigMaps and 110 tokens. Neither the first start, nor a new list of everything, nor a restart without the cloud
// gets it killed. Where this process may create no cgroup, the peak is compared with the limit.
func TestHubMemory(t *testing.T) {
	t.Parallel() // it has a cloud of its own
	cloud := ownCloud(t)
	ctx := testContext(t)
	load := startFullNode(t, cloud)
	hub, err := cloud.NewHub(ctx, "full-0")
	must(t, err)
	t.Cleanup(hub.Stop)
	m := limitedHub{Hub: hub}
	if m.group, err = harness.NewMemoryGroup("interop-hub", hubMemory); err == nil {
		t.Cleanup(func() { hub.Stop(); m.group.Close() })
		hub.Limit(m.group)
	} else {
		t.Logf("no cgroup, so that only the peak is measured: %v", err)
	}
	must(t, hub.Start(ctx))
	access, err := hub.SecureProxy()
	must(t, err)
	running, err := load.Start(access)
	must(t, err)
	m.checkServed(t, running, "first start")

	must(t, hub.Link.Cut())
	versions, err := load.Rewrite(ctx, cloud)
	must(t, err)
	must(t, cloud.Compact(ctx))
	must(t, cloud.RestartAPIServer(ctx)) // it forgets its history, so the hub lists everything
	must(t, hub.Link.Resume())
	must(t, harness.PollProcess(ctx, hub.Process, nodeLimit, 200*time.Millisecond, func(context.Context) error { return running.Has(versions) }))
	m.checkMemory(t, "new lists")

	must(t, hub.Link.Cut())
	running.Stop()
	hub.Process.Kill()
	must(t, hub.Start(ctx))
	running, err = load.Start(access)
	must(t, err)
	defer running.Stop()
	m.checkServed(t, running, "restart without the cloud")
	must(t, running.Has(versions))
}

// startFullNode creates the pods of a full node.
func startFullNode(t *testing.T, cloud *harness.Cloud) *harness.NodeLoad {
	t.Helper()
	ctx := testContext(t)
	const namespace = "full"
	_, err := cloud.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	must(t, err)
	_, err = cloud.Client.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	must(t, err)
	load, err := cloud.NewNodeLoad(ctx, namespace, "full-0", fullPods)
	must(t, err)
	return load
}

// limitedHub is a hub with its cgroup, nil if there is none.
type limitedHub struct {
	*harness.Hub
	group *harness.MemoryGroup
}

// checkServed waits until the informers have everything, requests the tokens, and checks the memory.
func (m *limitedHub) checkServed(t *testing.T, running *harness.RunningLoad, stage string) {
	t.Helper()
	ctx := testContext(t)
	began := time.Now()
	must(t, harness.PollProcess(ctx, m.Process, nodeLimit, 100*time.Millisecond, running.Synced))
	if refused, err := running.Tokens(ctx); refused > 0 {
		t.Errorf("%s: %d tokens refused: %v", stage, refused, err)
	}
	t.Logf("%s: served within %s", stage, time.Since(began).Round(100*time.Millisecond))
	m.checkMemory(t, stage)
}

// checkMemory checks that the hub still runs, within its memory.
func (m *limitedHub) checkMemory(t *testing.T, stage string) {
	t.Helper()
	if !m.Process.Running() {
		t.Fatalf("%s: the hub ended:\n%s", stage, m.Process.Tail(20))
	}
	peak, err := m.Process.MemoryOf("VmHWM")
	must(t, err)
	swap, err := m.Process.MemoryOf("VmSwap")
	must(t, err)
	if swap > 0 {
		t.Errorf("%s: %d bytes of swap", stage, swap)
	}
	if m.group == nil {
		t.Logf("%s: peak %d KiB", stage, peak>>10)
		if peak > hubMemory {
			t.Errorf("%s: the peak is above %d bytes", stage, hubMemory)
		}
		return
	}
	anonymous, err := m.group.Anonymous()
	must(t, err)
	kills, err := m.group.Kills()
	must(t, err)
	t.Logf("%s: peak %d KiB with the program's pages, %d KiB anonymous now", stage, peak>>10, anonymous>>10)
	if kills > 0 {
		t.Errorf("%s: the limit killed %d processes", stage, kills)
	}
}
