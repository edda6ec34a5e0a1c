package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Heartbeat values of a kubelet with default settings.
const (
	// LeaseDuration is the duration in a kubelet's Lease.
	LeaseDuration = 40 * time.Second
	// RenewInterval is the interval of its renewals.
	RenewInterval = 10 * time.Second
	// NodeGrace is the default grace period of the node lifecycle controller before it marks a node Unknown.
	NodeGrace = 50 * time.Second
	// statusInterval is the fake kubelet's interval of status updates; the real one is five minutes without changes.
	statusInterval = 60 * time.Second
	// updateRetries is a kubelet's number of attempts for one renewal.
	updateRetries = 5
)

// Kubelet performs only a kubelet's heartbeats: it renews its Lease and its NodeStatus through a hub's proxy port, in
// the given content type.
type Kubelet struct {
	node   string
	client kubernetes.Interface
	stop   context.CancelFunc
	done   chan struct{}

	mu       sync.Mutex
	renewals []time.Time // acknowledged renewals
	failures []string    // refused or failed ones
}

// StartKubelet posts the node's status and starts renewing; contentType is runtime.ContentTypeJSON or
// runtime.ContentTypeProtobuf.
func StartKubelet(ctx context.Context, node string, server Kubeconfig, contentType string) (*Kubelet, error) {
	config := server.Config(KubeletAgent)
	config.ContentType = contentType
	config.AcceptContentTypes = contentType
	if contentType == runtime.ContentTypeProtobuf {
		config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	}
	config.Timeout = RenewInterval
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	loop, cancel := context.WithCancel(context.Background())
	k := &Kubelet{node: node, client: client, stop: cancel, done: make(chan struct{})}
	if err := k.postStatus(ctx); err != nil {
		cancel()
		return nil, fmt.Errorf("node status of %s: %w", node, err)
	}
	go k.run(loop)
	return k, nil
}

// Stop ends all heartbeats and returns after the last one.
func (k *Kubelet) Stop() {
	k.stop()
	<-k.done
}

// Renewals returns the times of acknowledged renewals.
func (k *Kubelet) Renewals() []time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.renewals)
}

// BeatsSince is the number of these renewals that are later than the cloud's renewTime, which has microseconds.
func BeatsSince(renewals []time.Time, renewed time.Time) int {
	count := 0
	for _, beat := range renewals {
		if beat.Truncate(time.Microsecond).After(renewed) {
			count++
		}
	}
	return count
}

// Failures returns a line for each renewal that was not acknowledged.
func (k *Kubelet) Failures() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.failures)
}

func (k *Kubelet) run(ctx context.Context) {
	defer close(k.done)
	renew, status := time.NewTicker(RenewInterval), time.NewTicker(statusInterval)
	defer renew.Stop()
	defer status.Stop()
	var latest *coordinationv1.Lease
	for {
		latest = k.renew(ctx, latest)
		select {
		case <-ctx.Done():
			return
		case <-status.C:
			_ = k.postStatus(ctx) // fails while the cloud is unreachable; only the Lease counts
		case <-renew.C:
		}
	}
}

// renew updates the Lease and returns it as last acknowledged, nil if that is unknown.
func (k *Kubelet) renew(ctx context.Context, latest *coordinationv1.Lease) *coordinationv1.Lease {
	leases := k.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	var err error
	for range updateRetries {
		now := metav1.NewMicroTime(time.Now())
		if latest == nil {
			latest, err = leases.Get(ctx, k.node, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				latest, err = leases.Create(ctx, k.lease(now), metav1.CreateOptions{})
			}
			if err != nil {
				latest = nil
				break
			}
		}
		next := latest.DeepCopy()
		next.Spec.RenewTime = &now
		var got *coordinationv1.Lease
		if got, err = leases.Update(ctx, next, metav1.UpdateOptions{}); err == nil {
			k.mu.Lock()
			k.renewals = append(k.renewals, now.Time)
			k.mu.Unlock()
			return got
		}
		if !apierrors.IsConflict(err) {
			break
		}
		latest = nil
	}
	if ctx.Err() == nil {
		k.mu.Lock()
		k.failures = append(k.failures, fmt.Sprintf("%s %v", time.Now().Format("15:04:05.000"), err))
		k.mu.Unlock()
	}
	return latest
}

func (k *Kubelet) lease(now metav1.MicroTime) *coordinationv1.Lease {
	seconds := int32(LeaseDuration / time.Second)
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: k.node, Namespace: corev1.NamespaceNodeLease},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &k.node, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}
}

// PostStatus patches the node's conditions immediately, in addition to the regular updates.
func (k *Kubelet) PostStatus(ctx context.Context) error { return k.postStatus(ctx) }

// postStatus patches the node's conditions as the kubelet does.
func (k *Kubelet) postStatus(ctx context.Context) error {
	now := metav1.Now()
	conditions := []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
		Message: "kubelet is posting ready status", LastHeartbeatTime: now, LastTransitionTime: now}}
	for _, kind := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		conditions = append(conditions, corev1.NodeCondition{Type: kind, Status: corev1.ConditionFalse, Reason: "Sufficient",
			LastHeartbeatTime: now, LastTransitionTime: now})
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": conditions}})
	if err != nil {
		return err
	}
	_, err = k.client.CoreV1().Nodes().Patch(ctx, k.node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
