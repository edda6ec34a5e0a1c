package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"yurt.test/interop/harness"
)

// TestPoisonedPool has a leader that adds Pods to the pool's scope, and feeds one for another node. The kubelet there
// runs the cloud's pod and never receives the other one.
func TestPoisonedPool(t *testing.T) {
	t.Parallel() // it mostly waits
	cloud := sharedCloud(t)
	ctx := testContext(t)
	const hostile = "poisoned-hostile"
	must(t, cloud.CreateNode(ctx, hostile, "poisoned"))
	pool := startPool(t, cloud, harness.PoolOptions{Name: "poisoned", Hubs: 1})
	hub := waitLeader(t, pool)
	must(t, harness.Poll(ctx, readyLimit, 100*time.Millisecond, func(ctx context.Context) error {
		body, err := pool.Coordinator.Get(ctx, "/yurt/v1/members")
		if err == nil && !strings.Contains(string(body), hostile) {
			err = fmt.Errorf("%s is no member: %s", hostile, body)
		}
		return err
	}))
	must(t, hub.Process.Stop())
	startGuest(t, cloud, pool, hostile, "leads", true).waitLeads(t, takeoverLimit)
	checkPodsAreRefused(t, cloud, pool, hostile, hub.Node)

	must(t, hub.Start(ctx))
	_, err := hub.WaitState(ctx, harness.FollowerHub, readyLimit)
	must(t, err)
	kubelet := startHollow(t, cloud, hub, "kubelet", harness.KubeletAgent)
	must(t, harness.PollProcess(ctx, kubelet, readyLimit, 100*time.Millisecond, func(ctx context.Context) error {
		return isReady(ctx, cloud, hub.Node)
	}))
	must(t, putPod(ctx, cloud, "poisoned", hub.Node, "honest"))
	t.Cleanup(func() {
		_ = cloud.Client.CoreV1().Pods("poisoned").Delete(context.Background(), "honest", *metav1.NewDeleteOptions(0))
	})
	must(t, harness.PollProcess(ctx, kubelet, readyLimit, 100*time.Millisecond, func(context.Context) error {
		log, err := os.ReadFile(kubelet.LogPath)
		if err == nil && !bytes.Contains(log, []byte("poisoned/honest")) {
			err = fmt.Errorf("the kubelet does not run the pod of the cloud")
		}
		return err
	}))
	log, err := os.ReadFile(kubelet.LogPath)
	must(t, err)
	if bytes.Contains(log, []byte("owned")) {
		t.Errorf("the kubelet heard of the pod of the leader:\n%s", kubelet.Tail(20))
	}
	state, err := hub.State(ctx)
	must(t, err)
	if copied, has := state.Collections["pods"]; has {
		t.Errorf("%s copies pods: %+v", hub.Node, copied)
	}
}

// checkPodsAreRefused sends the feed calls of a hostile leader.
func checkPodsAreRefused(t *testing.T, cloud *harness.Cloud, pool *harness.Pool, leader, victim string) {
	t.Helper()
	kubeconfig, err := cloud.NodeKubeconfig(leader, pool.Coordinator.URL)
	must(t, err)
	client, err := rest.HTTPClientFor(kubeconfig.Config("hostile"))
	must(t, err)
	var feed struct {
		Store string `json:"store"`
		Epoch uint64 `json:"epoch"`
	}
	body, err := pool.Coordinator.Get(testContext(t), "/yurt/v1/feed")
	must(t, err)
	must(t, json.Unmarshal(body, &feed))
	call := func(path string, body map[string]any) (int, string) {
		body["store"], body["epoch"] = feed.Store, feed.Epoch
		text, err := json.Marshal(body)
		must(t, err)
		answer, err := client.Post(pool.Coordinator.URL+"/yurt/v1/feed/"+path+"?version=1", "application/json", bytes.NewReader(text))
		must(t, err)
		defer answer.Body.Close()
		told, err := io.ReadAll(answer.Body)
		must(t, err)
		return answer.StatusCode, string(told)
	}
	pods := map[string]any{"group": "", "version": "v1", "resource": "pods", "singular": "pod", "kind": "Pod", "listKind": "PodList", "namespaced": true}
	code, told := call("scope", map[string]any{"resources": []any{pods}})
	if code != http.StatusOK || !strings.Contains(told, `"pods"`) {
		t.Errorf("the pods are not refused by name: %d %s", code, told)
	}
	index := []any{[]string{"default/owned", "4000000"}}
	if code, told := call("pods/snapshot", map[string]any{"generation": 0, "at": "4000001", "after": "0", "index": index, "fresh": true}); code == http.StatusOK {
		owned := map[string]any{"apiVersion": "v1", "kind": "Pod",
			"metadata": map[string]any{"namespace": "default", "name": "owned", "uid": "owned", "resourceVersion": "4000000"}, "spec": podSpec(victim)}
		code, _ := call("pods/snapshot/bodies", map[string]any{"generation": 0, "at": "4000001", "objects": []any{owned}, "last": true, "fresh": true})
		t.Errorf("the pods are taken: %s, %d", told, code)
	}
}

func podSpec(node string) corev1.PodSpec {
	mount := false
	return corev1.PodSpec{NodeName: node, AutomountServiceAccountToken: &mount, Containers: []corev1.Container{{Name: "c", Image: "image"}},
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}
}

// putPod creates a pod in its own namespace, with the service account that no controller creates here.
func putPod(ctx context.Context, cloud *harness.Cloud, namespace, node, name string) error {
	core := cloud.Client.CoreV1()
	_, err := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	// If a controller manager runs, it may have been faster.
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err = core.ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return harness.Poll(ctx, readyLimit, 200*time.Millisecond, func(ctx context.Context) error {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: podSpec(node)}
		_, err := core.Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	})
}
