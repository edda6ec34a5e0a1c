package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"yurt.test/interop/harness"
)

const (
	// electionNamespace and electionName identify the pool's lease.
	electionNamespace, electionName = "kube-system", "yurthub"
	// guestHolds is the time for which a guest elector keeps the lease while hubs run: longer than the lease
	// duration.
	guestHolds = leaseDuration + 3*time.Second
	// handoverLimit is the maximum time without a leader after a release, on a busy machine: well below the lease
	// duration.
	handoverLimit = leaseDuration / 3
	// takeoverLimit is the maximum time without a leader after a holder is gone: the lease duration, one retry period
	// with its jitter, and a margin for the machine.
	takeoverLimit = leaseDuration + 10*time.Second
)

// TestGuestElector runs client-go's elector in the election of a pool, with the certificate of a member whose hub is
// off. It replaces hubs that are dead or paused, and keeps the lease as long as it renews it. Hubs wait for the lease's
// expiry on their own clocks, and acquire a released lease immediately. Two never lead together, and a deposed hub's
// feed is rejected. In the end the clients of the hubs have received everything, without a relist.
// Conformance: 7.20, 7.22
func TestGuestElector(t *testing.T) {
	t.Parallel() // it mostly waits
	cloud := sharedCloud(t)
	ctx := testContext(t)
	w := newWorkload(t, cloud, 20)
	pool := startPool(t, cloud, harness.PoolOptions{Name: "guest", Hubs: 3})
	leader := waitLeader(t, pool)
	away := pool.Others(leader)[0]
	must(t, away.Process.Stop())
	hubs := pool.Others(away)
	other := hubs[0]
	if other == leader {
		other = hubs[1]
	}
	ledger := followElection(t, pool)
	mirrors := startMirrors(t, hubs)
	waitEqual(t, cloud, mirrors, readyLimit)
	synced := time.Now()
	writes := startWriter(t, w, writePace)

	guest := startGuest(t, cloud, pool, away.Node, "first", true)
	guest.mustNotLead(t, 3*time.Second)

	// Dead hubs.
	leader.Process.Kill()
	other.Process.Kill()
	guest.waitLeads(t, takeoverLimit)
	must(t, leader.Start(ctx))
	must(t, other.Start(ctx))
	guest.mustKeep(t, pool, hubs)

	// A release.
	released := time.Now()
	guest.stop()
	leader, at, err := pool.WaitSuccessor(ctx, handoverLimit, hubs)
	must(t, err)
	t.Logf("%s leads %s after the release", leader.Node, at.Sub(released).Round(time.Millisecond))
	must(t, waitCoordinatorEqual(ctx, cloud, pool))

	// Paused hubs, and a holder that does not return.
	guest = startGuest(t, cloud, pool, away.Node, "second", false)
	guest.mustNotLead(t, 3*time.Second)
	applied := appliedBy(t, leader)
	for _, hub := range hubs {
		must(t, hub.Process.Signal(syscall.SIGSTOP))
	}
	guest.waitLeads(t, takeoverLimit)
	for _, hub := range hubs {
		must(t, hub.Process.Signal(syscall.SIGCONT))
	}
	guest.mustKeep(t, pool, hubs)
	if late := appliedBy(t, leader) - applied; late > 1 {
		// The coordinator may have accepted one batch that the hub had not counted yet.
		t.Errorf("%g late batches of %s were accepted, it says", late, leader.Node)
	}
	guest.stop()
	leader, _, err = pool.WaitSuccessor(ctx, takeoverLimit, hubs)
	must(t, err)
	if late := coordinatorMetric(t, pool, "yurt_coordinator_feed_late_accepted_total"); late != 0 {
		t.Errorf("%g late batches were accepted, the coordinator says", late)
	}
	t.Logf("%s leads in the end; %d writes", leader.Node, writes.stop(t))
	must(t, waitCoordinatorEqual(ctx, cloud, pool))
	waitEqual(t, cloud, mirrors, readyLimit)
	checkUnbroken(t, w, mirrors, synced)
	ledger.check(t, 5)
}

// TestBlindElectors runs two candidates with the crate kube-leader-election, with the certificate of a member whose hub
// is off. They send no resourceVersion and judge expiry by the wall clock. The coordinator ensures that one of them
// gets the lease of dead hubs, and that no second candidate leads. Hubs wait until the holder is silent.
func TestBlindElectors(t *testing.T) {
	t.Parallel() // it mostly waits
	cloud := sharedCloud(t)
	ctx := testContext(t)
	elector := buildElector(t)
	pool := startPool(t, cloud, harness.PoolOptions{Name: "blind", Hubs: 2})
	leader := waitLeader(t, pool)
	away := pool.Others(leader)[0]
	must(t, away.Process.Stop())
	hubs := pool.Others(away)
	ledger := followElection(t, pool)
	var electors []*blindElector
	for _, process := range []string{"first", "second"} {
		electors = append(electors, startBlindElector(t, cloud, pool, elector, away.Node, process))
	}
	time.Sleep(3 * time.Second)
	for _, one := range electors {
		one.check(t)
		if one.leads() {
			t.Fatalf("%s leads while a hub renews", one.identity)
		}
	}
	leader.Process.Kill()
	holder := waitBlindLeader(t, electors)
	must(t, leader.Start(ctx))
	_, err := leader.WaitState(ctx, harness.FollowerHub, readyLimit)
	must(t, err)
	for begun := time.Now(); time.Since(begun) < guestHolds; time.Sleep(100 * time.Millisecond) {
		state, err := leader.State(ctx)
		must(t, err)
		for _, one := range electors {
			one.check(t)
			if one.leads() != (one == holder) {
				t.Fatalf("%s printed %q while %s leads", one.identity, one.last(), holder.identity)
			}
		}
		if state.HubState != harness.FollowerHub {
			t.Fatalf("%s is %s while %s leads", leader.Node, state.HubState, holder.identity)
		}
	}
	for _, one := range electors {
		one.process.Kill()
	}
	_, _, err = pool.WaitSuccessor(ctx, takeoverLimit, hubs)
	must(t, err)
	must(t, waitCoordinatorEqual(ctx, cloud, pool))
	ledger.check(t, 2)
}

// blindElector is a process of interop/kube-rs/src/elector.rs.
type blindElector struct {
	identity string
	process  *harness.Process
}

// buildElector builds the program in its own target folder.
func buildElector(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../kube-rs")
	must(t, err)
	target := filepath.Join(dir, "target")
	cmd := exec.CommandContext(testContext(t), "cargo", "build", "--quiet", "--locked")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CARGO_TARGET_DIR="+target)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return filepath.Join(target, "debug", "kube-rs-client")
}

func startBlindElector(t *testing.T, cloud *harness.Cloud, pool *harness.Pool, path, node, name string) *blindElector {
	t.Helper()
	kubeconfig, err := cloud.NodeKubeconfig(node, pool.Coordinator.URL)
	must(t, err)
	file := filepath.Join(pool.Dir, "elector-"+name+".kubeconfig")
	must(t, kubeconfig.Write(file))
	identity := node + "_" + name
	process, err := harness.Start(harness.Command{Name: "elector-" + name, Path: path, Args: []string{"elector", identity},
		Env: []string{"KUBECONFIG=" + file}, Dir: pool.Dir})
	must(t, err)
	t.Cleanup(process.Kill)
	return &blindElector{identity: identity, process: process}
}

// last is its most recent output.
func (b *blindElector) last() string {
	lines := strings.Split(strings.TrimSpace(b.process.Tail(2)), "\n")
	return lines[len(lines)-1]
}

func (b *blindElector) leads() bool { return strings.HasPrefix(b.last(), "leads ") }

// check asserts that it never led with a lease of another holder.
func (b *blindElector) check(t *testing.T) {
	t.Helper()
	if last := b.last(); b.leads() && last != "leads "+b.identity {
		t.Errorf("%s printed %q", b.identity, last)
	}
}

// waitBlindLeader waits until one of them leads.
func waitBlindLeader(t *testing.T, electors []*blindElector) *blindElector {
	t.Helper()
	var holder *blindElector
	must(t, harness.Poll(testContext(t), takeoverLimit, 20*time.Millisecond, func(context.Context) error {
		for _, one := range electors {
			one.check(t)
			if one.leads() {
				holder = one
				return nil
			}
		}
		return fmt.Errorf("no leader: %q, %q", electors[0].last(), electors[1].last())
	}))
	return holder
}

// guest is an elector that is no hub.
type guest struct {
	identity string
	leads    <-chan struct{}
	// lost is closed when its leadership ends.
	lost <-chan struct{}
	stop func()
}

// startGuest starts client-go's elector as a node; at its end it releases the lease, or leaves it unchanged.
func startGuest(t *testing.T, cloud *harness.Cloud, pool *harness.Pool, node, process string, releases bool) *guest {
	t.Helper()
	kubeconfig, err := cloud.NodeKubeconfig(node, pool.Coordinator.URL)
	must(t, err)
	client, err := kubernetes.NewForConfig(kubeconfig.Config("guest"))
	must(t, err)
	leads, lost, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	identity := node + "_" + process
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: electionNamespace, Name: electionName},
			Client: client.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: identity}},
		LeaseDuration: leaseDuration, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		ReleaseOnCancel: releases,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(leads) },
			OnStoppedLeading: func() { close(lost) },
		},
	})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(ended)
		elector.Run(ctx)
	}()
	stop := func() { cancel(); <-ended }
	t.Cleanup(stop)
	return &guest{identity: identity, leads: leads, lost: lost, stop: stop}
}

func (g *guest) mustNotLead(t *testing.T, limit time.Duration) {
	t.Helper()
	select {
	case <-g.leads:
		t.Fatalf("%s leads while a hub renews", g.identity)
	case <-time.After(limit):
	}
}

func (g *guest) waitLeads(t *testing.T, limit time.Duration) {
	t.Helper()
	select {
	case <-g.leads:
	case <-time.After(limit):
		t.Fatalf("%s does not lead after %s", g.identity, limit)
	}
}

// mustKeep asserts that only the guest leads while it renews, for longer than its lease.
func (g *guest) mustKeep(t *testing.T, pool *harness.Pool, hubs []*harness.Hub) {
	t.Helper()
	ctx := testContext(t)
	// A hub that was paused may report leadership until it has checked its clock.
	for _, hub := range hubs {
		_, err := hub.WaitState(ctx, harness.FollowerHub, readyLimit)
		must(t, err)
	}
	for begun := time.Now(); time.Since(begun) < guestHolds; time.Sleep(100 * time.Millisecond) {
		select {
		case <-g.lost:
			t.Fatalf("%s lost the lease that it renews", g.identity)
		default:
		}
		for _, hub := range hubs {
			state, err := hub.State(ctx)
			must(t, err)
			if state.HubState != harness.FollowerHub {
				t.Fatalf("%s is %s while %s leads", hub.Node, state.HubState, g.identity)
			}
		}
	}
	var feed struct {
		Holder string `json:"holder"`
	}
	body, err := pool.Coordinator.Get(ctx, "/yurt/v1/feed")
	must(t, err)
	must(t, json.Unmarshal(body, &feed))
	if feed.Holder != g.identity {
		t.Errorf("the coordinator takes feed calls of %q, and %s leads", feed.Holder, g.identity)
	}
}

// ledger records the states of the election's lease.
type ledger struct {
	mu     sync.Mutex
	states []coordinationv1.LeaseSpec // guarded by mu
}

// followElection records every state of the lease from now on.
func followElection(t *testing.T, pool *harness.Pool) *ledger {
	t.Helper()
	client, err := kubernetes.NewForConfig(pool.Coordinator.Admin.Config("ledger"))
	must(t, err)
	l := &ledger{}
	see := func(object any) {
		if lease, ok := object.(*coordinationv1.Lease); ok && lease.Name == electionName {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.states = append(l.states, lease.Spec)
		}
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(electionNamespace))
	informer := factory.Coordination().V1().Leases().Informer()
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: see, UpdateFunc: func(_, object any) { see(object) },
		DeleteFunc: func(any) { t.Error("the election's lease was deleted") },
	})
	must(t, err)
	ctx := testContext(t)
	factory.Start(ctx.Done())
	if !toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("the election's lease cannot be read")
	}
	return l
}

// check asserts that each successor waited for the holder's lease duration after its last renewal, by the shared clock.
// It also asserts a minimum number of changes of the holder.
func (l *ledger) check(t *testing.T, changesMin int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	changes := 0
	for i, state := range l.states {
		if i == 0 || holderOf(state) == holderOf(l.states[i-1]) {
			continue
		}
		changes++
		before := l.states[i-1]
		if holderOf(before) == "" || holderOf(state) == "" {
			continue
		}
		duration := time.Duration(*before.LeaseDurationSeconds) * time.Second
		if silent := state.AcquireTime.Sub(before.RenewTime.Time); silent < duration {
			t.Errorf("%s replaced %s %s after its last renewal", holderOf(state), holderOf(before), silent)
		}
	}
	if changes < changesMin {
		t.Errorf("the lease changed hands %d times, want %d: %s", changes, changesMin, fmt.Sprint(l.states))
	}
}

func holderOf(spec coordinationv1.LeaseSpec) string {
	if spec.HolderIdentity == nil {
		return ""
	}
	return *spec.HolderIdentity
}
