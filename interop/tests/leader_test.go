package tests

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"yurt.test/interop/harness"
)

const (
	// leaseDuration is the hubs' --leader-elect-lease-duration.
	leaseDuration = 15 * time.Second
	// killLimit is the maximum time without a leader after SIGKILL, on an otherwise idle machine.
	killLimit = leaseDuration + 2*time.Second
	// stopLimit is the same after SIGTERM: the leader drains for at most a second and then releases its lease.
	stopLimit = 1050 * time.Millisecond
	// writePace is the interval of the test's writes during a change of leader.
	writePace = 100 * time.Millisecond
	// pauseLength is the length of the leader's pause: longer than its lease.
	pauseLength = 20 * time.Second
	// lateBatches is the number of batches that a leader without the clock check must have tried to feed.
	lateBatches = 10
)

// TestLeaderKilled kills the leader with SIGKILL.
// Conformance: 7.10, 7.20, 7.22, 7.52
func TestLeaderKilled(t *testing.T) {
	testLeaderGone(t, "killed", killLimit, func(hub *harness.Hub) { hub.Process.Kill() })
}

// TestLeaderStopped stops the leader with SIGTERM.
func TestLeaderStopped(t *testing.T) {
	testLeaderGone(t, "stopped", stopLimit, func(hub *harness.Hub) { must(t, hub.Process.Signal(syscall.SIGTERM)) })
}

// testLeaderGone removes the leader during steady writes. A successor leads in time, clients of the other hubs are
// unaffected, and the successor transfers no data that the pool already has.
func testLeaderGone(t *testing.T, name string, limit time.Duration, end func(*harness.Hub)) {
	cloud := sharedCloud(t)
	ctx := testContext(t)
	w := newWorkload(t, cloud, poolObjects)
	pool := startPool(t, cloud, harness.PoolOptions{Name: name, Hubs: 3})
	leader := waitLeader(t, pool)
	others := pool.Others(leader)
	mirrors := startMirrors(t, others)
	waitEqual(t, cloud, mirrors, syncLimit)
	mark, err := cloud.AuditMark()
	must(t, err)
	synced := time.Now()
	writes := startWriter(t, w, writePace)

	ended, pace := time.Now(), harness.StartPace()
	end(leader)
	successor, led, err := pool.WaitSuccessor(ctx, limit+5*time.Second, others)
	must(t, err)
	gap := led.Sub(ended)
	t.Logf("%s leads %s after the end of %s", successor.Node, gap.Round(time.Millisecond), leader.Node)
	if limit := pace.Limit(limit); gap > limit {
		t.Errorf("no leader for %s, want at most %s on this machine", gap, limit)
	}
	time.Sleep(2 * time.Second) // the new leader feeds some writes of its own term
	t.Logf("%d writes", writes.stop(t))
	waitEqual(t, cloud, mirrors, syncLimit)
	checkUnbroken(t, w, mirrors, synced)
	for _, hub := range others {
		checkNoLoadBy(t, cloud, mark, hub.Node)
	}
	checkTold(t, pool, successor, others)
	must(t, coordinatorEqualsCloud(ctx, cloud, pool))
}

// TestLeaderPaused pauses the leader with SIGSTOP for longer than its lease. When it resumes, it must detect the loss.
// In the second run a failpoint disables its clock check, and the coordinator must reject its feed.
func TestLeaderPaused(t *testing.T) {
	t.Run("KnowsItLost", func(t *testing.T) { testLeaderPaused(t, "paused", nil, 0) })
	t.Run("DoesNotLook", func(t *testing.T) {
		testLeaderPaused(t, "blind", []string{"YURT_FAILPOINTS=leader-clock-check=off"}, lateBatches)
	})
}

func testLeaderPaused(t *testing.T, name string, env []string, wantRefused float64) {
	cloud := sharedCloud(t)
	ctx := testContext(t)
	w := newWorkload(t, cloud, poolObjects)
	pool := startPool(t, cloud, harness.PoolOptions{Name: name, Hubs: 3, HubEnv: env})
	leader := waitLeader(t, pool)
	mirrors := startMirrors(t, pool.Others(leader))
	waitEqual(t, cloud, mirrors, syncLimit)
	must(t, waitCoordinatorEqual(ctx, cloud, pool))
	synced := time.Now()
	applied, refused := appliedBy(t, leader), refusedBy(t, pool)

	must(t, leader.Process.Signal(syscall.SIGSTOP))
	writes := startWriter(t, w, writePace)
	time.Sleep(pauseLength)
	successor, _, err := pool.WaitSuccessor(ctx, readyLimit, pool.Others(leader))
	must(t, err)
	must(t, leader.Process.Signal(syscall.SIGCONT))
	if wantRefused > 0 {
		must(t, harness.Poll(ctx, 30*time.Second, 50*time.Millisecond, func(context.Context) error {
			if n := refusedBy(t, pool) - refused; n < wantRefused {
				return fmt.Errorf("%g late batches were refused so far, want %g", n, wantRefused)
			}
			return nil
		}))
	} else {
		_, err = leader.WaitState(ctx, harness.FollowerHub, 5*time.Second)
		must(t, err)
	}
	t.Logf("%s leads; %d writes; %g late batches refused", successor.Node, writes.stop(t), refusedBy(t, pool)-refused)
	if late := appliedBy(t, leader) - applied; late != 0 {
		t.Errorf("%g late batches of %s were accepted, it says", late, leader.Node)
	}
	if late := coordinatorMetric(t, pool, "yurt_coordinator_feed_late_accepted_total"); late != 0 {
		t.Errorf("%g late batches were accepted, the coordinator says", late)
	}
	must(t, waitCoordinatorEqual(ctx, cloud, pool))
	waitEqual(t, cloud, mirrors, syncLimit)
	checkUnbroken(t, w, mirrors, synced)
}

// appliedBy is the number of this hub's batches that the coordinator has accepted, by the hub's own count.
func appliedBy(t *testing.T, hub *harness.Hub) float64 {
	t.Helper()
	metrics, err := hub.Metrics(testContext(t))
	must(t, err)
	n, err := metrics.Sum("node_yurthub_feed_batches_total")
	must(t, err)
	return n
}

// refusedBy is the number of feed calls that the coordinator has rejected because the caller does not lead.
func refusedBy(t *testing.T, pool *harness.Pool) float64 {
	t.Helper()
	return coordinatorMetric(t, pool, "yurt_coordinator_feed_fenced_total")
}

func coordinatorMetric(t *testing.T, pool *harness.Pool, name string) float64 {
	t.Helper()
	metrics, err := pool.Coordinator.Metrics(testContext(t))
	must(t, err)
	n, err := metrics.Sum(name)
	must(t, err)
	return n
}
