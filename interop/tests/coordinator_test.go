package tests

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"yurt.test/interop/harness"
)

// TestCoordinatorRestartOffline kills the coordinator while no hub reaches the cloud: the hubs continue to serve, and
// the coordinator restarts with all of its data.
// Conformance: 7.57
func TestCoordinatorRestartOffline(t *testing.T) {
	cloud := sharedCloud(t)
	ctx := testContext(t)
	w := newWorkload(t, cloud, poolObjects)
	pool := startPool(t, cloud, harness.PoolOptions{Name: "offline", Hubs: 3})
	waitLeader(t, pool)
	mirrors := startMirrors(t, pool.Hubs)
	waitEqual(t, cloud, mirrors, syncLimit)
	must(t, waitCoordinatorEqual(ctx, cloud, pool))
	synced := time.Now()

	must(t, pool.CutCloud())
	checkHubsServe(t, cloud, pool, "with the cloud gone")
	pool.Coordinator.Process.Kill()
	checkHubsServe(t, cloud, pool, "with cloud and coordinator gone")
	must(t, pool.Coordinator.Start(ctx))
	t.Logf("the coordinator serves %s after its start", time.Since(pool.Coordinator.Process.StartedAt).Round(time.Millisecond))
	must(t, coordinatorEqualsCloud(ctx, cloud, pool))
	for _, hub := range pool.Hubs {
		_, err := hub.WaitState(ctx, harness.FollowerHub, readyLimit)
		must(t, err)
	}
	checkHubsServe(t, cloud, pool, "with the coordinator back")

	must(t, pool.ResumeCloud())
	waitLeader(t, pool)
	change, err := w.Step(ctx)
	must(t, err)
	must(t, harness.Poll(ctx, readyLimit, 20*time.Millisecond, func(context.Context) error {
		for _, mirror := range mirrors {
			if err := shows(mirror, change); err != nil {
				return err
			}
		}
		return nil
	}))
	checkUnbroken(t, w, mirrors, synced)
}

// checkHubsServe lists every pool-scope resource through every hub and compares with the cloud, without retries.
func checkHubsServe(t *testing.T, cloud *harness.Cloud, pool *harness.Pool, when string) {
	t.Helper()
	ctx := testContext(t)
	for _, hub := range pool.Hubs {
		client, err := dynamic.NewForConfig(hub.Proxy().Config(harness.PlainAgent))
		must(t, err)
		if err := equalsCloud(ctx, cloud, client, hub.Node); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
}

// coordinatorEqualsCloud compares the coordinator's lists with the cloud's.
func coordinatorEqualsCloud(ctx context.Context, cloud *harness.Cloud, pool *harness.Pool) error {
	client, err := dynamic.NewForConfig(pool.Coordinator.Admin.Config("interop"))
	if err != nil {
		return err
	}
	return equalsCloud(ctx, cloud, client, "the coordinator")
}

// waitCoordinatorEqual waits for the feed, for the time limit of a change.
func waitCoordinatorEqual(ctx context.Context, cloud *harness.Cloud, pool *harness.Pool) error {
	return harness.Poll(ctx, syncLimit, 50*time.Millisecond, func(ctx context.Context) error {
		return coordinatorEqualsCloud(ctx, cloud, pool)
	})
}

func equalsCloud(ctx context.Context, cloud *harness.Cloud, client dynamic.Interface, name string) error {
	for _, gvr := range harness.PoolScope {
		want, err := cloudContent(ctx, cloud, gvr)
		if err != nil {
			return err
		}
		have, err := listAll(ctx, client, gvr)
		if err != nil {
			return fmt.Errorf("%s: list %s: %w", name, gvr.Resource, err)
		}
		if err := sameContent(name, want, have); err != nil {
			return fmt.Errorf("%s: %w", gvr.Resource, err)
		}
	}
	return nil
}

func listAll(ctx context.Context, client dynamic.Interface, gvr schema.GroupVersionResource) (map[string]*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	list, err := client.Resource(gvr).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return byKey(list), nil
}
