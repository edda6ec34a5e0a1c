package tests

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"yurt.test/interop/harness"
)

const (
	// delegateAnnotation marks a Lease with a forwarded heartbeat.
	delegateAnnotation = "openyurt.io/delegate-heartbeat"
	// delegationLength is the time for which a cut-off node must stay Ready.
	delegationLength = 3 * time.Minute
	// missedBeats is the maximum number of acknowledged heartbeats missing in the cloud. A hub that loses its link in
	// the middle of a renewal misses one, and the latest may be in flight. Far below the grace.
	missedBeats = 2
	// notReadyLimit is the time after which a node with a silent kubelet must be NotReady: the controller's grace plus
	// one lease duration and its monitor period.
	notReadyLimit = harness.NodeGrace + harness.LeaseDuration + 5*time.Second
)

// TestHeartbeatDelegation cuts two hubs off the cloud, one with a JSON kubelet and one with a protobuf kubelet. The
// leader forwards their heartbeats, the nodes stay Ready, and a silent kubelet is still detected. Takes about five
// minutes.
func TestHeartbeatDelegation(t *testing.T) {
	t.Parallel() // it mostly waits
	cloud := sharedCloud(t)
	ctx := testContext(t)
	kcm, err := cloud.StartControllerManager(ctx)
	must(t, err)
	defer func() { must(t, kcm.Stop()) }()
	pool := startPool(t, cloud, harness.PoolOptions{Name: "beat", Hubs: 3})
	leader := waitLeader(t, pool)
	cutOff := pool.Others(leader)
	var kubelets []*harness.Kubelet
	for i, contentType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		kubelet, err := harness.StartKubelet(ctx, cutOff[i].Node, cutOff[i].Proxy(), contentType)
		must(t, err)
		defer kubelet.Stop()
		kubelets = append(kubelets, kubelet)
	}
	for i, hub := range cutOff {
		must(t, harness.Poll(ctx, readyLimit, 100*time.Millisecond, func(ctx context.Context) error {
			return errors.Join(isReady(ctx, cloud, hub.Node), isBeating(ctx, cloud, hub.Node, "", kubelets[i]))
		}))
	}
	for _, hub := range cutOff {
		must(t, hub.Link.Cut())
	}
	for i, hub := range cutOff {
		must(t, harness.Poll(ctx, readyLimit, 100*time.Millisecond, func(ctx context.Context) error {
			return isBeating(ctx, cloud, hub.Node, "true", kubelets[i])
		}))
	}
	watchDelegation(t, cloud, cutOff, kubelets)
	for i, kubelet := range kubelets {
		if failures := kubelet.Failures(); len(failures) > 0 {
			t.Errorf("the kubelet of %s saw %d failed renewals: %q", cutOff[i].Node, len(failures), failures)
		}
		kubelet.Stop()
	}
	waitNotReady(t, cloud, cutOff, time.Now())
}

// watchDelegation reads Lease and Node once a second for three minutes.
func watchDelegation(t *testing.T, cloud *harness.Cloud, hubs []*harness.Hub, kubelets []*harness.Kubelet) {
	t.Helper()
	ctx := testContext(t)
	begun, last := time.Now(), map[string]time.Time{}
	changes := map[string]int{}
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for end := time.Now().Add(delegationLength); time.Now().Before(end); <-ticker.C {
		for i, hub := range hubs {
			must(t, isReady(ctx, cloud, hub.Node))
			beats := kubelets[i].Renewals() // before the Lease is read: a delay here excuses no missing heartbeat
			lease, err := nodeLease(ctx, cloud, hub.Node)
			must(t, err)
			if lease.Annotations[delegateAnnotation] != "true" {
				t.Fatalf("the Lease of %s lost its annotation: %v", hub.Node, lease.Annotations)
			}
			renewed := lease.Spec.RenewTime.Time
			if renewed.Before(last[hub.Node]) {
				t.Fatalf("renewTime of %s went back from %s to %s", hub.Node, last[hub.Node], renewed)
			}
			must(t, isCarried(hub.Node, beats, renewed, missedBeats))
			if renewed.After(last[hub.Node]) {
				last[hub.Node] = renewed
				changes[hub.Node]++
			}
		}
	}
	for i, hub := range hubs {
		beats := harness.BeatsSince(kubelets[i].Renewals(), begun)
		t.Logf("%s: %d delegated renewals in %s, of %d beats", hub.Node, changes[hub.Node], delegationLength, beats)
	}
}

// isCarried returns nil if the cloud's Lease is at most this many acknowledged heartbeats behind. It compares the order
// alone: a loaded machine delays kubelets and hubs alike.
func isCarried(node string, beats []time.Time, renewed time.Time, missed int) error {
	if behind := harness.BeatsSince(beats, renewed); behind > missed {
		return fmt.Errorf("the kubelet of %s had %d renewals acknowledged since the cloud's renewTime %s, %d may be missing: %v",
			node, behind, renewed, missed, beats[len(beats)-behind:])
	}
	return nil
}

// waitNotReady waits until the controller has detected the silent kubelets.
func waitNotReady(t *testing.T, cloud *harness.Cloud, hubs []*harness.Hub, silent time.Time) {
	t.Helper()
	for _, hub := range hubs {
		must(t, harness.Poll(testContext(t), max(time.Until(silent.Add(notReadyLimit)), time.Second), 200*time.Millisecond, func(ctx context.Context) error {
			status, _, err := cloud.NodeReady(ctx, hub.Node)
			if err == nil && status == corev1.ConditionTrue {
				err = fmt.Errorf("%s is still Ready", hub.Node)
			}
			return err
		}))
		t.Logf("%s was NotReady %s after its kubelet fell silent", hub.Node, time.Since(silent).Round(time.Second))
	}
}

// isBeating returns nil if the cloud's Lease of a node has the kubelet's latest heartbeats, with or without the
// annotation as wanted.
func isBeating(ctx context.Context, cloud *harness.Cloud, node, annotation string, kubelet *harness.Kubelet) error {
	beats := kubelet.Renewals()
	lease, err := nodeLease(ctx, cloud, node)
	if err != nil {
		return fmt.Errorf("%w; kubelet: %d renewals, failures %q", err, len(beats), kubelet.Failures())
	}
	if len(beats) == 0 {
		return fmt.Errorf("the kubelet of %s had no renewal acknowledged yet; failures: %q", node, kubelet.Failures())
	}
	if err := isCarried(node, beats, lease.Spec.RenewTime.Time, missedBeats); err != nil {
		return fmt.Errorf("%w; kubelet failures: %q", err, kubelet.Failures())
	}
	if have := lease.Annotations[delegateAnnotation]; have != annotation {
		return fmt.Errorf("the Lease of %s has %s=%q, want %q", node, delegateAnnotation, have, annotation)
	}
	return nil
}

func nodeLease(ctx context.Context, cloud *harness.Cloud, node string) (*coordinationv1.Lease, error) {
	lease, err := cloud.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, node, metav1.GetOptions{})
	if err == nil && lease.Spec.RenewTime == nil {
		err = fmt.Errorf("the Lease of %s has no renewTime", node)
	}
	return lease, err
}
