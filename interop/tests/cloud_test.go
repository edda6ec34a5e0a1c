package tests

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"yurt.test/interop/harness"
)

// TestCloudStarts checks the harness itself, without our programs: the cloud, the informers and their records, the
// audit log, the link, the controller manager, the fake kubelet and the hollow node.
func TestCloudStarts(t *testing.T) {
	cloud := sharedCloud(t)
	t.Run("InformersAndAudit", func(t *testing.T) { checkInformersAndAudit(t, cloud) })
	t.Run("Link", func(t *testing.T) { checkLink(t, cloud) })
	t.Run("Nodes", func(t *testing.T) { checkNodes(t, cloud) })
}

func checkInformersAndAudit(t *testing.T, cloud *harness.Cloud) {
	ctx := testContext(t)
	w := newWorkload(t, cloud, 20)
	mark, err := cloud.AuditMark()
	must(t, err)
	var mirrors []*harness.Mirror
	for i, watchList := range []bool{false, true} {
		name := fmt.Sprintf("direct-%d", i)
		identity, err := cloud.NodeKubeconfig(name, cloud.URL)
		must(t, err)
		mirrors = append(mirrors, startMirror(t, harness.MirrorOptions{
			Name: name, Server: identity, UserAgent: "interop", WatchList: watchList, Resources: harness.PoolScope}))
	}
	waitSynced(t, mirrors)
	synced := time.Now()
	for range 50 {
		change, err := w.Step(ctx)
		must(t, err)
		_, err = waitShown(ctx, mirrors, change)
		must(t, err)
	}
	waitEqual(t, cloud, mirrors, syncLimit)
	checkUnbroken(t, w, mirrors, synced)
	for _, mirror := range mirrors {
		if reads := wholeReads(mirror, time.Time{}); len(reads) != len(harness.PoolScope) {
			t.Errorf("%s: %d whole reads, want one per resource: %v", mirror.Name, len(reads), reads)
		}
		checkOneListOneWatch(t, cloud, mark, mirror.Name)
	}
}

func checkLink(t *testing.T, cloud *harness.Cloud) {
	ctx := testContext(t)
	w := newWorkload(t, cloud, 5)
	link, err := harness.NewLink(fmt.Sprintf("127.0.0.1:%d", cloud.Port))
	must(t, err)
	defer link.Close()
	identity, err := cloud.NodeKubeconfig("linked", link.URL())
	must(t, err)
	mirrors := []*harness.Mirror{startMirror(t, harness.MirrorOptions{Name: "linked", Server: identity, UserAgent: "interop", Resources: harness.PoolScope})}
	waitSynced(t, mirrors)
	if link.Down() == 0 {
		t.Error("the link counted nothing")
	}
	must(t, link.Cut())
	change, err := w.Step(ctx)
	must(t, err)
	if err := shows(mirrors[0], change); err == nil {
		t.Error("a change came through a cut link")
	}
	must(t, link.Resume())
	must(t, harness.Poll(ctx, readyLimit, 10*time.Millisecond, func(context.Context) error { return shows(mirrors[0], change) }))
}

func checkNodes(t *testing.T, cloud *harness.Cloud) {
	ctx := testContext(t)
	kcm, err := cloud.StartControllerManager(ctx)
	must(t, err)
	defer func() { must(t, kcm.Stop()) }()
	for _, contentType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		name := "fake-json"
		if contentType == runtime.ContentTypeProtobuf {
			name = "fake-protobuf"
		}
		must(t, cloud.CreateNode(ctx, name, "none"))
		identity, err := cloud.NodeKubeconfig(name, cloud.URL)
		must(t, err)
		kubelet, err := harness.StartKubelet(ctx, name, identity, contentType)
		must(t, err)
		defer kubelet.Stop()
		must(t, harness.Poll(ctx, readyLimit, 50*time.Millisecond, func(ctx context.Context) error {
			if len(kubelet.Renewals()) == 0 {
				return fmt.Errorf("%s has not renewed: %q", name, kubelet.Failures())
			}
			return isReady(ctx, cloud, name)
		}))
	}
	const hollow = "hollow"
	must(t, cloud.CreateNode(ctx, hollow, "none"))
	identity, err := cloud.NodeKubeconfig(hollow, cloud.URL)
	must(t, err)
	kubelet, stopKubelet, err := cloud.StartHollow("kubelet", hollow, identity)
	must(t, err)
	defer stopKubelet()
	proxy, stopProxy, err := cloud.StartHollow("proxy", hollow, cloud.Admin)
	must(t, err)
	defer stopProxy()
	must(t, harness.PollProcess(ctx, kubelet, readyLimit, 100*time.Millisecond, func(ctx context.Context) error {
		return isReady(ctx, cloud, hollow)
	}))
	if !proxy.Running() {
		t.Errorf("the hollow proxy ended:\n%s", proxy.Tail(20))
	}
}

// isReady returns nil if the node is Ready.
func isReady(ctx context.Context, cloud *harness.Cloud, node string) error {
	status, since, err := cloud.NodeReady(ctx, node)
	if err == nil && status != corev1.ConditionTrue {
		err = fmt.Errorf("node %s has Ready=%s since %s", node, status, since.Format(time.TimeOnly))
	}
	return err
}
