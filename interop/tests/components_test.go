package tests

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"yurt.test/interop/harness"
)

// componentsWatched is the time for which the real components must stay healthy. It is longer than the controller's
// grace, so that lost renewals are detected.
const componentsWatched = harness.NodeGrace + 15*time.Second

// TestRealNodeComponents runs kubemark's hollow kubelet and hollow proxy through a hub: the same code as the real
// ones, protobuf included. The node registers, renews and stays Ready.
// Conformance: 5.02, 5.20, 5.21
func TestRealNodeComponents(t *testing.T) {
	cloud := sharedCloud(t)
	ctx := testContext(t)
	kcm, err := cloud.StartControllerManager(ctx)
	must(t, err)
	defer func() { must(t, kcm.Stop()) }()
	w := newWorkload(t, cloud, 20)
	mark, err := cloud.AuditMark()
	must(t, err)
	pool := startPool(t, cloud, harness.PoolOptions{Name: "hollow", Hubs: 1})
	waitLeader(t, pool)
	hub := pool.Hubs[0]
	kubelet := startHollow(t, cloud, hub, "kubelet", harness.KubeletAgent)
	proxy := startHollow(t, cloud, hub, "proxy", harness.KubeProxyAgent)
	must(t, harness.PollProcess(ctx, kubelet, readyLimit, 100*time.Millisecond, func(ctx context.Context) error {
		_, err := nodeLease(ctx, cloud, hub.Node)
		return errors.Join(isReady(ctx, cloud, hub.Node), err)
	}))
	// The hollow node's kubelet is a separate process: its progress is judged by the time it could run.
	first, err := nodeLease(ctx, cloud, hub.Node)
	must(t, err)
	writes := startWriter(t, w, time.Second)
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for end := time.Now().Add(componentsWatched); time.Now().Before(end); <-ticker.C {
		must(t, isReady(ctx, cloud, hub.Node))
		if !kubelet.Running() || !proxy.Running() {
			t.Fatalf("a component ended:\n%s\n%s", kubelet.Tail(20), proxy.Tail(20))
		}
	}
	writes.stop(t)
	last, err := nodeLease(ctx, cloud, hub.Node)
	must(t, err)
	if got := last.Spec.RenewTime.Sub(first.Spec.RenewTime.Time); got < componentsWatched-harness.NodeGrace {
		t.Errorf("the Lease moved by %s in %s", got, componentsWatched)
	}
	checkOneListOneWatch(t, cloud, mark, pool.Name+"-")
}

// startHollow starts a hollow component against a hub, under the name of its real counterpart.
func startHollow(t *testing.T, cloud *harness.Cloud, hub *harness.Hub, morph, agent string) *harness.Process {
	t.Helper()
	named, err := harness.StartAgentProxy(hub.Proxy().Server, agent)
	must(t, err)
	t.Cleanup(named.Close)
	process, stop, err := cloud.StartHollow(morph, hub.Node, harness.Kubeconfig{Server: named.URL})
	must(t, err)
	t.Cleanup(stop)
	return process
}

// TestHubHealthPages reads every page of a hub's health port.
func TestHubHealthPages(t *testing.T) {
	cloud := sharedCloud(t)
	pool := startPool(t, cloud, harness.PoolOptions{Name: "pages", Hubs: 1})
	waitLeader(t, pool)
	for _, path := range []string{"/v1/healthz", "/metrics", "/debug/state.json"} {
		must(t, harness.Poll(testContext(t), syncLimit, 20*time.Millisecond, func(ctx context.Context) error {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, pool.Hubs[0].AdminURL()+path, nil)
			if err != nil {
				return err
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				return err
			}
			defer response.Body.Close()
			if response.StatusCode != http.StatusOK {
				return fmt.Errorf("%s: %s", path, response.Status)
			}
			return nil
		}))
	}
}
