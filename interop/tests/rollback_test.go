package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"yurt.test/interop/harness"
)

// rollbackLimit is the time in which every informer must agree with a cloud restored from a backup.
const rollbackLimit = 90 * time.Second

// TestRollback restores a real cloud from a backup of its etcd while informers read through a pool. For every kind of
// change in the lost stretch, and every time of detection, three results are required: every informer ends with the
// cloud's state, those that watched relist once, and all hubs and the coordinator agree on a new generation.
// Conformance: 7.55
func TestRollback(t *testing.T) {
	t.Parallel() // it mostly waits, and has a cloud of its own
	cloud := ownCloud(t)
	t.Run("WhileThePoolWatches", func(t *testing.T) {
		s := newRollback(t, cloud, "watching")
		s.cutClients(t)
		s.loseStretch(t)
		s.restore(t)
		s.passNumbers(t)
		s.checkStartedOver(t)
	})
	t.Run("WhileThePoolIsOffline", func(t *testing.T) {
		s := newRollback(t, cloud, "offline")
		s.loseStretch(t)
		s.goOffline(t)
		s.restore(t)
		s.comeOnline(t)
		s.passNumbers(t)
		s.checkStartedOver(t)
	})
	t.Run("AfterTheNumbersHavePassed", func(t *testing.T) {
		s := newRollback(t, cloud, "passed")
		s.loseStretch(t)
		s.goOffline(t)
		s.restore(t)
		s.passNumbers(t)
		s.comeOnline(t)
		s.checkStartedOver(t)
	})
}

// TestServerThatLags has hubs follow a kube-apiserver that lags behind etcd: that is no rollback.
func TestServerThatLags(t *testing.T) {
	cloud := ownCloud(t)
	second, err := cloud.StartSecondAPIServer(testContext(t))
	must(t, err)
	s := newRollbackIn(t, cloud, harness.PoolOptions{Name: "lagging", Hubs: 2, MoreServers: []string{second.URL}})
	before := s.generation(t)
	must(t, second.Etcd.Blackhole())
	s.put(t, "changed", "2")
	s.put(t, "meanwhile", "")
	s.remove(t, "removed")
	s.known(t)
	synced := time.Now()
	must(t, s.pool.CutCloud())
	time.Sleep(10 * time.Second)
	s.put(t, "changed", "3")
	must(t, second.Etcd.Resume())
	waitEqual(t, cloud, s.all(), rollbackLimit)
	must(t, s.pool.ResumeCloud())
	s.put(t, "changed", "4")
	waitEqual(t, cloud, s.all(), rollbackLimit)
	if after := s.generation(t); after != before {
		t.Errorf("generation %s after a server that lagged, want %s", after, before)
	}
	for _, mirror := range s.all() {
		if reads := wholeReads(mirror, synced); len(reads) > 0 {
			t.Errorf("%s: %d relists: %v; watch errors: %q", mirror.Name, len(reads), reads, mirror.WatchErrors())
		}
	}
}

// ownCloud is a cloud for this test alone; further flags of kube-apiserver may be given.
func ownCloud(t *testing.T, flags ...string) *harness.Cloud {
	t.Helper()
	cloud, err := harness.StartCloud(context.Background(), testDir(t), flags...)
	must(t, err)
	t.Cleanup(func() {
		if err := cloud.Stop(); err != nil {
			t.Errorf("stopping the cloud: %v", err)
		}
	})
	return cloud
}

// rollback is a pool with informers, some objects in the cloud, and a backup of them.
type rollback struct {
	cloud     *harness.Cloud
	backup    harness.Backup
	pool      *harness.Pool
	namespace string
	// long are informers that always reach their hub, one per hub.
	long []*harness.Mirror
	// resuming are informers with interrupted links to their hub, and these links.
	resuming []*harness.Mirror
	links    []*harness.Link
	was      string // generation before
	since    time.Time
}

func newRollback(t *testing.T, cloud *harness.Cloud, name string) *rollback {
	t.Helper()
	return newRollbackIn(t, cloud, harness.PoolOptions{Name: name, Hubs: 3})
}

// newRollbackIn starts the pool and the informers, and makes the backup when all are synchronised.
func newRollbackIn(t *testing.T, cloud *harness.Cloud, options harness.PoolOptions) *rollback {
	t.Helper()
	s := &rollback{cloud: cloud, namespace: "rollback-" + options.Name}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}
	_, err := cloud.Client.CoreV1().Namespaces().Create(testContext(t), namespace, metav1.CreateOptions{})
	must(t, err)
	for _, name := range []string{"kept", "changed", "removed", "again"} {
		s.put(t, name, "1")
	}
	s.pool = startPool(t, cloud, options)
	waitLeader(t, s.pool)
	s.long = startMirrors(t, s.pool.Hubs)
	for _, hub := range s.pool.Hubs {
		link, err := harness.NewLink(strings.TrimPrefix(hub.Proxy().Server, "http://"))
		must(t, err)
		t.Cleanup(link.Close)
		s.links = append(s.links, link)
		s.resuming = append(s.resuming, startMirror(t, harness.MirrorOptions{Name: hub.Node + "-resuming",
			Server: harness.Kubeconfig{Server: "http://" + link.Address()}, UserAgent: harness.PlainAgent, Resources: harness.PoolScope}))
	}
	waitSynced(t, s.resuming)
	s.known(t)
	s.backup, err = cloud.Backup(testContext(t))
	must(t, err)
	waitLeader(t, s.pool)
	s.put(t, "flowing", "") // lost, too; shows that everything flows again
	s.known(t)
	s.was = s.generation(t)
	s.since = time.Now()
	return s
}

func (s *rollback) all() []*harness.Mirror { return slices.Concat(s.long, s.resuming) }

// known waits until every informer has the cloud's data.
func (s *rollback) known(t *testing.T) {
	t.Helper()
	waitEqual(t, s.cloud, s.all(), rollbackLimit)
}

// loseStretch makes the changes that the restored cloud lacks.
func (s *rollback) loseStretch(t *testing.T) {
	t.Helper()
	s.put(t, "changed", "2")
	s.put(t, "lost", "")
	s.remove(t, "removed")
	s.remove(t, "again")
	s.put(t, "again", "2")
	waitEqual(t, s.cloud, s.long, rollbackLimit)
}

// restore restores the cloud, and makes new changes.
func (s *rollback) restore(t *testing.T) {
	t.Helper()
	must(t, s.cloud.Restore(testContext(t), s.backup))
	s.put(t, "kept", "3")
	s.put(t, "new", "")
}

// passNumbers writes other objects until the cloud's resourceVersions are above all earlier ones.
func (s *rollback) passNumbers(t *testing.T) {
	t.Helper()
	ctx := testContext(t)
	maps := s.cloud.Client.CoreV1().ConfigMaps(s.namespace)
	high := uint64(0)
	for _, mirror := range s.all() {
		for _, gvr := range harness.PoolScope {
			for _, object := range mirror.Content(gvr) {
				high = max(high, number(t, object.GetResourceVersion()))
			}
		}
	}
	filler := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "filler"}}
	written, err := maps.Create(ctx, filler, metav1.CreateOptions{})
	must(t, err)
	for i := 0; number(t, written.ResourceVersion) < high+100; i++ {
		written.Data = map[string]string{"i": strconv.Itoa(i)}
		written, err = maps.Update(ctx, written, metav1.UpdateOptions{})
		must(t, err)
	}
	s.put(t, "changed", "after")
	s.remove(t, "new")
}

// number parses a resourceVersion or a generation.
func number(t *testing.T, version string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(version, 10, 64)
	must(t, err)
	return n
}

func (s *rollback) cutClients(t *testing.T) {
	t.Helper()
	for _, link := range s.links {
		must(t, link.Cut())
	}
}

// goOffline cuts the pool from the cloud, and half of the clients from their hubs.
func (s *rollback) goOffline(t *testing.T) {
	t.Helper()
	s.cutClients(t)
	must(t, s.pool.CutCloud())
	must(t, harness.Poll(testContext(t), readyLimit, 100*time.Millisecond, func(ctx context.Context) error {
		for _, hub := range s.pool.Hubs {
			if state, err := hub.State(ctx); err != nil || state.HubState == harness.LeaderHub {
				return fmt.Errorf("%s still leads (%v)", hub.Node, err)
			}
		}
		return nil
	}))
}

func (s *rollback) comeOnline(t *testing.T) {
	t.Helper()
	must(t, s.pool.ResumeCloud())
}

// checkStartedOver checks the end: see [TestRollback].
func (s *rollback) checkStartedOver(t *testing.T) {
	t.Helper()
	waitEqual(t, s.cloud, s.long, rollbackLimit)
	after := s.generation(t)
	if number(t, after) <= number(t, s.was) {
		t.Errorf("generation %s after the rollback, %s before", after, s.was)
	}
	for _, link := range s.links {
		must(t, link.Resume())
	}
	waitEqual(t, s.cloud, s.all(), rollbackLimit)
	s.put(t, "flows", "")
	s.remove(t, "kept")
	waitEqual(t, s.cloud, s.all(), rollbackLimit)
	must(t, waitCoordinatorEqual(testContext(t), s.cloud, s.pool))
	for _, mirror := range s.long {
		for _, gvr := range harness.PoolScope {
			if reads := mirror.Transport.WholeReads(gvr.Resource, s.since); startsOver(reads) != 1 {
				t.Errorf("%s: %d relists of %s, want the one: %v; watch errors: %q", mirror.Name, len(reads), gvr.Resource, reads, mirror.WatchErrors())
			}
		}
	}
	for _, mirror := range s.resuming {
		for _, gvr := range harness.PoolScope {
			if reads := mirror.Transport.WholeReads(gvr.Resource, s.since); startsOver(reads) > 1 {
				t.Errorf("%s: %d relists of %s, want one at the most: %v; watch errors: %q", mirror.Name, len(reads), gvr.Resource, reads, mirror.WatchErrors())
			}
		}
	}
	if after := s.generation(t); number(t, after) <= number(t, s.was) {
		t.Errorf("generation %s in the end, %s before", after, s.was)
	}
	must(t, harness.Poll(testContext(t), toldLimit, 100*time.Millisecond, func(ctx context.Context) error {
		return s.toldOfGeneration(ctx)
	}))
	checkStates(t, s.pool, waitLeader(t, s.pool))
}

// startsOver counts a client's relists. A reflector first requests its last resourceVersion. If that is ahead of the
// server, it gets an error and requests any: that is one relist.
func startsOver(reads []harness.Read) int {
	anyVersion := 0
	for _, read := range reads {
		if read.ResourceVersion == "" {
			anyVersion++
		}
	}
	return max(anyVersion, min(1, len(reads)))
}

// toldOfGeneration returns nil if an Event names the new generation.
func (s *rollback) toldOfGeneration(ctx context.Context) error {
	events, err := poolEvents(ctx, s.pool, "default", "")
	if err != nil {
		return err
	}
	for _, event := range events {
		if event.Reason == "PoolDataGeneration" && event.Type == corev1.EventTypeWarning {
			return nil
		}
	}
	return fmt.Errorf("none of %d events names a new generation", len(events))
}

// generation is the common generation of all hubs and the coordinator.
func (s *rollback) generation(t *testing.T) string {
	t.Helper()
	var agreed string
	must(t, harness.Poll(testContext(t), rollbackLimit, 100*time.Millisecond, func(ctx context.Context) error {
		told := map[string]string{}
		for _, hub := range s.pool.Hubs {
			state, err := hub.State(ctx)
			if err != nil {
				return err
			}
			for _, gvr := range harness.PoolScope {
				told[hub.Node+" "+gvr.Resource] = string(state.Collections[gvr.GroupResource().String()].Generation)
			}
		}
		var status struct {
			Collections map[string]struct {
				Generation harness.Scalar `json:"generation"`
			} `json:"collections"`
		}
		body, err := s.pool.Coordinator.Get(ctx, "/yurt/v1/feed")
		if err != nil {
			return err
		}
		if err := json.Unmarshal(body, &status); err != nil {
			return err
		}
		for _, gvr := range harness.PoolScope {
			told["coordinator "+gvr.Resource] = string(status.Collections[gvr.GroupResource().String()].Generation)
		}
		agreed = told["coordinator services"]
		// Each collection counts separately; one number per resource is the same everywhere.
		for _, gvr := range harness.PoolScope {
			for _, hub := range s.pool.Hubs {
				if have, want := told[hub.Node+" "+gvr.Resource], told["coordinator "+gvr.Resource]; have != want || have == "" {
					return fmt.Errorf("%s has generation %q of %s, the coordinator %q", hub.Node, have, gvr.Resource, want)
				}
			}
		}
		return nil
	}))
	return agreed
}

// put creates or changes a Service and an EndpointSlice of this name.
func (s *rollback) put(t *testing.T, name, mark string) {
	t.Helper()
	ctx := testContext(t)
	labels := map[string]string{"mark": "m" + mark}
	services, endpoints := s.cloud.Client.CoreV1().Services(s.namespace), s.cloud.Client.DiscoveryV1().EndpointSlices(s.namespace)
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.2.3"}}}}
	if held, err := services.Get(ctx, name, metav1.GetOptions{}); err == nil {
		held.Labels = labels
		_, err = services.Update(ctx, held, metav1.UpdateOptions{})
		must(t, err)
	} else if apierrors.IsNotFound(err) {
		_, err = services.Create(ctx, service, metav1.CreateOptions{})
		must(t, err)
	} else {
		must(t, err)
	}
	if held, err := endpoints.Get(ctx, name, metav1.GetOptions{}); err == nil {
		held.Labels = labels
		_, err = endpoints.Update(ctx, held, metav1.UpdateOptions{})
		must(t, err)
	} else if apierrors.IsNotFound(err) {
		_, err = endpoints.Create(ctx, slice, metav1.CreateOptions{})
		must(t, err)
	} else {
		must(t, err)
	}
}

// writable returns nil if the cloud accepts writes.
func (s *rollback) writable(ctx context.Context) error {
	_, err := s.cloud.Client.CoreV1().Services(s.namespace).Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "dry"},
		Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// remove deletes both.
func (s *rollback) remove(t *testing.T, name string) {
	t.Helper()
	ctx := testContext(t)
	must(t, s.cloud.Client.CoreV1().Services(s.namespace).Delete(ctx, name, metav1.DeleteOptions{}))
	must(t, s.cloud.Client.DiscoveryV1().EndpointSlices(s.namespace).Delete(ctx, name, metav1.DeleteOptions{}))
}
