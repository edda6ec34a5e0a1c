package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"yurt.test/interop/harness"
)

// toldLimit is the maximum time until a hub and the coordinator report a new leader.
const toldLimit = 15 * time.Second

// checkTold checks that an operator sees the new leader, by an Event about the election's lease and in the metrics of
// the coordinator and the hubs. It also checks that no client of the others had to relist.
func checkTold(t *testing.T, pool *harness.Pool, leader *harness.Hub, others []*harness.Hub) {
	t.Helper()
	ctx := testContext(t)
	must(t, harness.Poll(ctx, toldLimit, 100*time.Millisecond, func(ctx context.Context) error {
		return saidToLead(ctx, pool, leader.Node)
	}))
	coordinator, err := pool.Coordinator.Metrics(ctx)
	must(t, err)
	if n, err := coordinator.Sum("yurt_coordinator_leader", fmt.Sprintf("node=%q", leader.Node)); err != nil || n != 1 {
		t.Errorf("the coordinator does not say that %s leads (%v)", leader.Node, err)
	}
	for _, hub := range others {
		metrics, err := hub.Metrics(ctx)
		must(t, err)
		for name, want := range map[string]float64{
			"leader_election_master_status":                boolToFloat(hub == leader),
			"node_yurthub_elections_won_total":             boolToFloat(hub == leader),
			"node_yurthub_collection_relists_forced_total": 0,
		} {
			if got, err := metrics.Sum(name); err != nil || got != want {
				t.Errorf("%s: %s is %g (%v), want %g", hub.Node, name, got, err, want)
			}
		}
	}
	metrics, err := leader.Metrics(ctx)
	must(t, err)
	lag, err := metrics.Sum("node_yurthub_feed_lag_seconds")
	if err != nil || lag > 10 {
		t.Errorf("the feed lags by %g s (%v)", lag, err)
	}
}

// saidToLead returns nil if an Event about the election's lease names the node as the new leader.
func saidToLead(ctx context.Context, pool *harness.Pool, node string) error {
	events, err := poolEvents(ctx, pool, "kube-system", "?fieldSelector=involvedObject.name=yurthub")
	if err != nil {
		return err
	}
	for _, event := range events {
		named := strings.HasPrefix(event.Message, node+"_") && strings.HasSuffix(event.Message, " became leader")
		if named && event.Reason == "LeaderElection" && event.InvolvedObject.Kind == "Lease" && event.Count >= 1 {
			return nil
		}
	}
	return fmt.Errorf("none of %d events says that %s leads", len(events), node)
}

func boolToFloat(value bool) float64 {
	if value {
		return 1
	}
	return 0
}

// poolEvents lists the Events of a namespace at the pool's coordinator; query begins with "?" or is empty.
func poolEvents(ctx context.Context, pool *harness.Pool, namespace, query string) ([]corev1.Event, error) {
	body, err := pool.Coordinator.Get(ctx, "/api/v1/namespaces/"+namespace+"/events"+query)
	if err != nil {
		return nil, err
	}
	var events corev1.EventList
	err = json.Unmarshal(body, &events)
	return events.Items, err
}
