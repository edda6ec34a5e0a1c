package tests

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"yurt.test/interop/harness"
)

// clientGoLease is the lease duration of the elections in these tests, the smallest practical one for client-go.
const clientGoLease = 3 * time.Second

// TestClientGoAgainstCoordinator uses the coordinator alone, as a small control plane, with the common clients:
// client-go's leader election, informers and listers, and kubectl. It needs no cloud. Typed clients use protobuf,
// client-go's own default.
// Conformance: 2.53, 5.04, 7.01, 7.02, 7.03, 7.05, 7.06, 7.07, 7.23
func TestClientGoAgainstCoordinator(t *testing.T) {
	ctx := testContext(t)
	coordinator, err := harness.StartStandalone(ctx, testDir(t))
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(coordinator.Process.Tail(40))
		}
		if err := coordinator.Process.Stop(); err != nil {
			t.Errorf("stopping the coordinator: %v", err)
		}
	})
	config := coordinator.Admin.Config("client-go-test")
	spoken := &contentTypes{}
	config.Wrap(spoken.wrap)
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	t.Run("Election", func(t *testing.T) { checkElection(t, client) })
	t.Run("InformerWithList", func(t *testing.T) { checkInformer(t, coordinator.Admin, client, false) })
	t.Run("InformerWithWatchList", func(t *testing.T) { checkInformer(t, coordinator.Admin, client, true) })
	t.Run("Lister", func(t *testing.T) { checkLister(t, client) })
	t.Run("Kubectl", func(t *testing.T) { checkKubectl(t, "kubectl", coordinator.AdminFile) })
	t.Run("Restart", func(t *testing.T) { checkRestart(t, coordinator, client) })
	spoken.check(t)
}

// contentTypes counts the content types of a server's responses.
type contentTypes struct {
	mu   sync.Mutex
	seen map[string]int // guarded by mu
}

func (c *contentTypes) wrap(inner http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		response, err := inner.RoundTrip(request)
		if err == nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.seen == nil {
				c.seen = map[string]int{}
			}
			c.seen[response.Header.Get("Content-Type")]++
		}
		return response, err
	})
}

// check fails if typed clients got a response other than protobuf.
func (c *contentTypes) check(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	t.Logf("content types: %v", c.seen)
	for kind := range c.seen {
		if !strings.HasPrefix(kind, runtime.ContentTypeProtobuf) {
			t.Errorf("%d answers in %q", c.seen[kind], kind)
		}
	}
	for _, want := range []string{runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf + ";stream=watch"} {
		if c.seen[want] == 0 {
			t.Errorf("no answer in %q", want)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// TestClientGoAgainstKubeAPIServer runs the same checks against the real server: a failure here is a fault of the
// check.
func TestClientGoAgainstKubeAPIServer(t *testing.T) {
	cloud := sharedCloud(t)
	t.Run("Election", func(t *testing.T) { checkElection(t, cloud.Client) })
	t.Run("InformerWithList", func(t *testing.T) { checkInformer(t, cloud.Admin, cloud.Client, false) })
	t.Run("InformerWithWatchList", func(t *testing.T) { checkInformer(t, cloud.Admin, cloud.Client, true) })
	t.Run("Lister", func(t *testing.T) { checkLister(t, cloud.Client) })
	t.Run("Kubectl", func(t *testing.T) { checkKubectl(t, "kubectl", cloud.AdminFile) })
}

// checkElection has two candidates: one leads and releases when it stops, and the other follows immediately.
func checkElection(t *testing.T, client kubernetes.Interface) {
	ctx := testContext(t)
	first, stopFirst := runElector(t, client, "first")
	waitLeads(t, first, clientGoLease)
	second, stopSecond := runElector(t, client, "second")
	defer stopSecond()
	select {
	case <-second:
		t.Fatal("two candidates lead")
	case <-time.After(2 * clientGoLease):
	}
	released := time.Now()
	stopFirst()
	waitLeads(t, second, clientGoLease)
	t.Logf("the second candidate led %s after the first stopped", time.Since(released).Round(time.Millisecond))
	lease, err := client.CoordinationV1().Leases("default").Get(ctx, "interop-election", metav1.GetOptions{})
	must(t, err)
	if got := *lease.Spec.LeaseTransitions; got != 1 && got != 2 {
		t.Errorf("leaseTransitions is %d after one change of leader", got)
	}
}

func waitLeads(t *testing.T, leads <-chan struct{}, limit time.Duration) {
	t.Helper()
	select {
	case <-leads:
	case <-time.After(limit):
		t.Fatalf("the candidate does not lead after %s", limit)
	}
}

// runElector starts client-go's leader election; the channel is closed when it leads.
func runElector(t *testing.T, client kubernetes.Interface, identity string) (<-chan struct{}, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	leads, ended := make(chan struct{}), make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: "default", Name: "interop-election"},
			Client: client.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: identity}},
		LeaseDuration: clientGoLease, RenewDeadline: 2 * time.Second, RetryPeriod: 500 * time.Millisecond,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(leads) },
			OnStoppedLeading: func() {},
		},
	})
	must(t, err)
	go func() {
		defer close(ended)
		elector.Run(ctx)
	}()
	return leads, func() { cancel(); <-ended }
}

// checkInformer follows creations, updates and deletions of ConfigMaps.
func checkInformer(t *testing.T, server harness.Kubeconfig, client kubernetes.Interface, watchList bool) {
	ctx := testContext(t)
	namespace := fmt.Sprintf("informer-%t", watchList)
	createNamespace(t, client, namespace)
	maps := client.CoreV1().ConfigMaps(namespace)
	_, err := maps.Create(ctx, configMap("before", "0"), metav1.CreateOptions{})
	must(t, err)
	mirror := startMirror(t, harness.MirrorOptions{Name: namespace, Server: server, UserAgent: "informer-test",
		WatchList: watchList, Resources: []schema.GroupVersionResource{harness.ConfigMaps}, Namespace: namespace})
	waitSynced(t, []*harness.Mirror{mirror})
	synced := time.Now()
	for i := range 50 {
		name := fmt.Sprintf("map-%d", i%7)
		var object *corev1.ConfigMap
		if held := mirror.Get(harness.ConfigMaps, namespace+"/"+name); held == nil {
			object, err = maps.Create(ctx, configMap(name, fmt.Sprint(i)), metav1.CreateOptions{})
		} else if i%5 == 0 {
			must(t, maps.Delete(ctx, name, metav1.DeleteOptions{}))
		} else {
			next := configMap(name, fmt.Sprint(i))
			next.ResourceVersion = held.GetResourceVersion()
			object, err = maps.Update(ctx, next, metav1.UpdateOptions{})
		}
		must(t, err)
		change := harness.Change{Resource: harness.ConfigMaps, Key: namespace + "/" + name, Gone: object == nil}
		if object != nil {
			change.UID, change.ResourceVersion = string(object.UID), object.ResourceVersion
		}
		_, err = waitShown(ctx, []*harness.Mirror{mirror}, change)
		must(t, err)
	}
	if reads := mirror.Transport.WholeReads("configmaps", synced); len(reads) > 0 {
		t.Errorf("relists: %v; watch errors: %q", reads, mirror.WatchErrors())
	}
	first := mirror.Transport.WholeReads("configmaps", time.Time{})
	if len(first) != 1 || first[0].Watch != watchList {
		t.Errorf("first read: %v, want one, as a watch: %t", first, watchList)
	}
	for _, line := range mirror.Backwards() {
		t.Error(line)
	}
}

// checkLister reads through a shared informer factory's typed lister, with a label selector.
func checkLister(t *testing.T, client kubernetes.Interface) {
	ctx := testContext(t)
	createNamespace(t, client, "lister")
	for i := range 10 {
		object := configMap(fmt.Sprintf("labelled-%d", i), "x")
		object.Labels = map[string]string{"half": fmt.Sprint(i % 2)}
		_, err := client.CoreV1().ConfigMaps("lister").Create(ctx, object, metav1.CreateOptions{})
		must(t, err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace("lister"))
	lister := factory.Core().V1().ConfigMaps().Lister()
	factory.Start(ctx.Done())
	for kind, ok := range factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			t.Fatalf("%s did not sync", kind)
		}
	}
	half, err := lister.List(labels.SelectorFromSet(labels.Set{"half": "1"}))
	must(t, err)
	if len(half) != 5 {
		t.Errorf("the lister finds %d of 5", len(half))
	}
	list, err := client.CoreV1().ConfigMaps("lister").List(ctx, metav1.ListOptions{LabelSelector: "half=1"})
	must(t, err)
	if len(list.Items) != 5 {
		t.Errorf("the server finds %d of 5", len(list.Items))
	}
	// Later changes reach the lister, too: as events of a typed watch.
	object := configMap("later", "x")
	object.Labels = map[string]string{"half": "2"}
	_, err = client.CoreV1().ConfigMaps("lister").Create(ctx, object, metav1.CreateOptions{})
	must(t, err)
	err = wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, readyLimit, true, func(context.Context) (bool, error) {
		_, err := lister.ConfigMaps("lister").Get("later")
		return err == nil, nil
	})
	must(t, err)
}

// checkRestart kills the coordinator: acknowledged data must exist afterwards.
func checkRestart(t *testing.T, coordinator *harness.Coordinator, client kubernetes.Interface) {
	ctx := testContext(t)
	createNamespace(t, client, "restart")
	var last string
	for i := range 20 {
		object, err := client.CoreV1().ConfigMaps("restart").Create(ctx, configMap(fmt.Sprintf("kept-%d", i), "x"), metav1.CreateOptions{})
		must(t, err)
		last = object.ResourceVersion
	}
	coordinator.Process.Kill()
	must(t, coordinator.Start(ctx))
	list, err := client.CoreV1().ConfigMaps("restart").List(ctx, metav1.ListOptions{})
	must(t, err)
	if len(list.Items) != 20 {
		t.Errorf("%d of 20 ConfigMaps survived", len(list.Items))
	}
	next, err := client.CoreV1().ConfigMaps("restart").Create(ctx, configMap("after", "x"), metav1.CreateOptions{})
	must(t, err)
	if len(next.ResourceVersion) < len(last) || (len(next.ResourceVersion) == len(last) && next.ResourceVersion <= last) {
		t.Errorf("resourceVersion %s after the restart is not above %s", next.ResourceVersion, last)
	}
}

func createNamespace(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	_, err := client.CoreV1().Namespaces().Create(testContext(t), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(t, err)
}

func configMap(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"value": value}}
}
