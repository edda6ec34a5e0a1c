package tests

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"yurt.test/interop/harness"
)

const (
	// hollowPods is the number of pods of the hollow node.
	hollowPods = 3
	// hollowSpace is their namespace.
	hollowSpace = "node-life"
	// nodeLimit bounds the wait for one state of a hollow node.
	nodeLimit = 60 * time.Second
)

// proxierBinding gives nodes kube-proxy's rights, because kube-proxy acts as the node at its hub.
const proxierBinding = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: interop-proxiers}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:node-proxier"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:nodes"}]
`

// forwardedPort is the line in which kubectl names the port that it forwards.
var forwardedPort = regexp.MustCompile(`Forwarding from (127\.0\.0\.1:[0-9]+)`)

// TestHollowNode runs a kubelet, kube-proxy, CoreDNS and kubectl through a hub at a real control plane, over TLS. The
// cloud is killed: everything goes on from the hub's data. Hub and components restart without it, and it returns:
// statuses written in between arrive, and no component lists again.
// Conformance: 5.20, 5.21, 5.23
func TestHollowNode(t *testing.T) {
	t.Parallel() // it has a cloud of its own
	n := startNodeLife(t)
	for _, stage := range []struct {
		name string
		do   func(*testing.T)
	}{{"online", n.worksOnline}, {"streams", n.streams}, {"without the cloud", n.goesOn},
		{"restart without the cloud", n.restartsOffline}, {"return of the cloud", n.cloudReturns}, {"cut of the link", n.linkReturns}} {
		began := time.Now()
		stage.do(t)
		t.Logf("%s: %s", stage.name, time.Since(began).Round(100*time.Millisecond))
	}
}

// nodeLife is a hollow node with pods and a service.
type nodeLife struct {
	*harness.HollowNode
	cloud *harness.Cloud
	slice *discoveryv1.EndpointSlice
	tool  kubectl
	crash time.Time
}

func startNodeLife(t *testing.T) *nodeLife {
	t.Helper()
	ctx := testContext(t)
	n := &nodeLife{cloud: ownCloud(t)}
	_, err := n.cloud.StartControllerManager(ctx)
	must(t, err)
	must(t, n.cloud.Apply(ctx, []byte(proxierBinding)))
	n.makeObjects(t)
	n.HollowNode, err = n.cloud.StartHollowNode(ctx, "hollow-0")
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(n.Logs(40))
		}
		n.Stop()
	})
	binary, err := harness.StockBinary("kubectl")
	must(t, err)
	kubeconfig := testDir(t) + "/tool.kubeconfig"
	must(t, n.Tool.Write(kubeconfig))
	n.tool = kubectl{t: t, binary: binary, kubeconfig: kubeconfig, home: testDir(t)}
	return n
}

// makeObjects creates pods that mount a token, a Secret and a ConfigMap, a Service, and a headless one with one address.
func (n *nodeLife) makeObjects(t *testing.T) {
	t.Helper()
	ctx, client := testContext(t), n.cloud.Client
	_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: hollowSpace}}, metav1.CreateOptions{})
	must(t, err)
	must(t, harness.Poll(ctx, readyLimit, 50*time.Millisecond, func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts(hollowSpace).Get(ctx, "default", metav1.GetOptions{})
		return err
	}))
	_, err = client.CoreV1().ConfigMaps(hollowSpace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}}, metav1.CreateOptions{})
	must(t, err)
	_, err = client.CoreV1().Secrets(hollowSpace).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "password"}}, metav1.CreateOptions{})
	must(t, err)
	for i := range hollowPods {
		_, err = client.CoreV1().Pods(hollowSpace).Create(ctx, hollowPod(fmt.Sprintf("app-%d", i), "hollow-0"), metav1.CreateOptions{})
		must(t, err)
	}
	for name, address := range map[string]string{"echo": "", "db": "None"} { // kube-proxy selects no headless Services
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{ClusterIP: address, Ports: []corev1.ServicePort{{Port: 80}}}}
		_, err = client.CoreV1().Services(hollowSpace).Create(ctx, service, metav1.CreateOptions{})
		must(t, err)
	}
	ready := true
	n.slice, err = client.DiscoveryV1().EndpointSlices(hollowSpace).Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "db-1", Labels: map[string]string{discoveryv1.LabelServiceName: "db"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.7.7.1"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
	}, metav1.CreateOptions{})
	must(t, err)
}

func hollowPod(name, node string) *corev1.Pod {
	mounts := []corev1.VolumeMount{{Name: "settings", MountPath: "/settings"}, {Name: "password", MountPath: "/password"}}
	settings := &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		NodeName:   node,
		Containers: []corev1.Container{{Name: "main", Image: "interop/main", VolumeMounts: mounts}},
		Volumes: []corev1.Volume{
			{Name: "settings", VolumeSource: corev1.VolumeSource{ConfigMap: settings}},
			{Name: "password", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "password"}}},
		},
	}}
}

// worksOnline waits until every component has done its work once.
func (n *nodeLife) worksOnline(t *testing.T) {
	t.Helper()
	must(t, harness.Poll(testContext(t), nodeLimit, 100*time.Millisecond, func(ctx context.Context) error {
		_, err := n.startedInCloud(ctx, time.Time{})
		return errors.Join(err, isReady(ctx, n.cloud, n.Hub.Node))
	}))
	n.waitServed(t, time.Time{}, "10.7.7.1")
	if out := n.tool.run("-n", hollowSpace, "get", "pods", "-o", "name"); strings.Count(out, "pod/app-") != hollowPods {
		t.Errorf("kubectl get pods gives %q", out)
	}
	n.tool.run("-n", hollowSpace, "get", "services,endpointslices")
}

// waitServed waits until kube-proxy and CoreDNS, as started after since, know the service with an address.
func (n *nodeLife) waitServed(t *testing.T, since time.Time, address string) {
	t.Helper()
	must(t, harness.Poll(testContext(t), nodeLimit, 50*time.Millisecond, func(ctx context.Context) error {
		for resource, content := range map[string]string{"services": "echo", "endpointslices": address} {
			reads := n.Proxy.Seen.Passed(since, func(p harness.Passed) bool {
				return strings.HasSuffix(p.URL.Path, "/"+resource) && p.Code == http.StatusOK && strings.Contains(p.Body, content)
			})
			if len(reads) == 0 {
				all := n.Proxy.Seen.Passed(since, func(harness.Passed) bool { return true })
				return fmt.Errorf("kube-proxy read no %s with %s: %v", resource, content, all)
			}
		}
		found, err := n.Resolver.LookupHost(ctx, "db."+hollowSpace+".svc.cluster.local.")
		if err == nil && !slices.Equal(found, []string{address}) {
			err = fmt.Errorf("db is at %v, want %s", found, address)
		}
		return err
	}))
}

// startedInCloud returns the start of every pod's container as the cloud knows it, if it is after since.
func (n *nodeLife) startedInCloud(ctx context.Context, since time.Time) (map[string]time.Time, error) {
	list, err := n.cloud.Client.CoreV1().Pods(hollowSpace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.Hub.Node})
	if err != nil {
		return nil, err
	}
	return startedSince(list.Items, since)
}

func startedSince(pods []corev1.Pod, since time.Time) (map[string]time.Time, error) {
	started := map[string]time.Time{}
	for _, pod := range pods {
		if pod.Namespace != hollowSpace || len(pod.Status.ContainerStatuses) == 0 {
			continue
		}
		if running := pod.Status.ContainerStatuses[0].State.Running; running != nil && !running.StartedAt.Time.Before(since) {
			started[pod.Name] = running.StartedAt.Time
		}
	}
	if len(started) != hollowPods {
		return nil, fmt.Errorf("%d of %d pods run since %s: %v", len(started), hollowPods, since.Format("15:04:05"), started)
	}
	return started, nil
}

// streams uses logs, exec and port-forward, over WebSocket and SPDY.
func (n *nodeLife) streams(t *testing.T) {
	t.Helper()
	ctx := testContext(t)
	host, err := n.cloud.StartStreamHost(ctx, "hollow-streams")
	must(t, err)
	pods := n.cloud.Client.CoreV1().Pods(hollowSpace)
	_, err = pods.Create(ctx, hollowPod("stream", host.Node), metav1.CreateOptions{})
	must(t, err)
	running := []byte(`{"status":{"phase":"Running"}}`)
	_, err = pods.Patch(ctx, "stream", types.MergePatchType, running, metav1.PatchOptions{}, "status")
	must(t, err)
	if out := n.tool.run("-n", hollowSpace, "logs", "-f", "stream"); out != "first line of stream\nsecond line of stream\n" {
		t.Errorf("kubectl logs gives %q", out)
	}
	for _, websockets := range []string{"true", "false"} {
		n.execs(t, "KUBECTL_REMOTE_COMMAND_WEBSOCKETS="+websockets)
		n.forwardsPort(t, "KUBECTL_PORT_FORWARD_WEBSOCKETS="+websockets)
	}
}

func (n *nodeLife) execs(t *testing.T, protocol string) {
	t.Helper()
	command := n.tool.command(testContext(t), "-n", hollowSpace, "exec", "-i", "stream", "--", "sh", "-c", "cat; echo problem >&2; exit 7")
	command.Env = append(command.Env, protocol)
	command.Stdin = strings.NewReader(strings.Repeat("0123456789", 100_000))
	var out, problems strings.Builder
	command.Stdout, command.Stderr = &out, &problems
	err := command.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 || out.Len() != 1_000_000 || !strings.Contains(problems.String(), "problem") {
		t.Errorf("kubectl exec: %v, %d bytes, %q", err, out.Len(), problems.String())
	}
}

func (n *nodeLife) forwardsPort(t *testing.T, protocol string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer listener.Close()
	go echoOnce(listener)
	port := listener.Addr().(*net.TCPAddr).Port
	command := n.tool.command(testContext(t), "-n", hollowSpace, "port-forward", "pod/stream", fmt.Sprintf(":%d", port))
	command.Env = append(command.Env, protocol)
	out, err := command.StdoutPipe()
	must(t, err)
	must(t, command.Start())
	defer func() { _ = command.Process.Kill(); _ = command.Wait() }()
	line, err := bufio.NewReader(out).ReadString('\n')
	must(t, err)
	found := forwardedPort.FindStringSubmatch(line)
	if found == nil {
		t.Fatalf("kubectl port-forward prints %q", line)
	}
	conn, err := net.DialTimeout("tcp", found[1], 10*time.Second)
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	_, err = io.WriteString(conn, "through the hub")
	must(t, err)
	answer := make([]byte, len("through the hub"))
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "through the hub" {
		t.Errorf("the forwarded port echoes %q, %v", answer, err)
	}
}

// echoOnce sends the bytes of one connection back.
func echoOnce(listener net.Listener) {
	conn, err := listener.Accept()
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = io.Copy(conn, conn)
}

// goesOn kills the cloud and checks the components.
func (n *nodeLife) goesOn(t *testing.T) {
	t.Helper()
	n.cloud.Kill()
	killed := time.Now()
	n.waitLeaseAccepted(t, killed)
	pods, err := n.Pods(testContext(t))
	must(t, err)
	_, err = startedSince(pods, time.Time{})
	must(t, err)
	if reads := n.Proxy.Seen.Passed(killed, isRead); len(reads) > 0 {
		t.Errorf("kube-proxy lost its streams: %v", reads)
	}
	n.waitServed(t, time.Time{}, "10.7.7.1")
	n.checkToolOffline(t)
}

// isRead accepts the reads of pool data.
func isRead(p harness.Passed) bool {
	return strings.HasSuffix(p.URL.Path, "/services") || strings.HasSuffix(p.URL.Path, "/endpointslices")
}

// waitLeaseAccepted waits for two renewals of the kubelet since a time; none may fail.
func (n *nodeLife) waitLeaseAccepted(t *testing.T, since time.Time) {
	t.Helper()
	isRenewal := func(p harness.Passed) bool {
		return strings.Contains(p.URL.Path, "/leases") && p.Method == http.MethodPut
	}
	must(t, harness.Poll(testContext(t), nodeLimit, 100*time.Millisecond, func(context.Context) error {
		renewals := n.Kubelet.Seen.Passed(since, func(p harness.Passed) bool { return isRenewal(p) && p.Code == http.StatusOK })
		if len(renewals) < 2 {
			return fmt.Errorf("%d renewals of the kubelet since %s", len(renewals), since.Format("15:04:05"))
		}
		return nil
	}))
	refused := n.Kubelet.Seen.Passed(since, func(p harness.Passed) bool { return isRenewal(p) && p.Ended && p.Code != http.StatusOK })
	if len(refused) > 0 {
		t.Errorf("renewals failed: %v", refused)
	}
}

// checkToolOffline reads pool data with kubectl, under the tool's own token.
func (n *nodeLife) checkToolOffline(t *testing.T) {
	t.Helper()
	if out := n.tool.run("-n", hollowSpace, "get", "services,endpointslices", "-o", "name"); !strings.Contains(out, "service/echo") ||
		!strings.Contains(out, "endpointslice.discovery.k8s.io/db-1") {
		t.Errorf("kubectl get without the cloud gives %q", out)
	}
}

// restartsOffline kills hub and components, starts them without the cloud and waits until all of them work.
func (n *nodeLife) restartsOffline(t *testing.T) {
	t.Helper()
	ctx := testContext(t)
	n.Crash()
	n.crash = time.Now().Truncate(time.Second).Add(time.Second)
	time.Sleep(time.Until(n.crash)) // statuses have whole seconds
	access, err := n.Hub.SecureProxy()
	must(t, err)
	node, err := kubernetes.NewForConfig(access.Config(harness.KubeProxyAgent))
	must(t, err)
	took, err := n.Hub.StartTimed(ctx, nodeLimit, func(ctx context.Context) error {
		_, err := node.CoreV1().Services(hollowSpace).Get(ctx, "echo", metav1.GetOptions{})
		return err
	})
	must(t, err)
	t.Logf("the hub served a Service over TLS %s after its exec", took.Round(time.Millisecond))
	must(t, n.StartComponents(ctx))
	must(t, harness.Poll(ctx, nodeLimit, 100*time.Millisecond, func(ctx context.Context) error {
		pods, err := n.Pods(ctx)
		if err == nil && len(pods) != hollowPods {
			err = fmt.Errorf("the kubelet knows %d pods", len(pods))
		}
		return err
	}))
	// It starts their containers again, and writes that into their statuses.
	must(t, harness.Poll(ctx, nodeLimit, 100*time.Millisecond, func(context.Context) error {
		accepted := map[string]bool{}
		for _, write := range n.Kubelet.Seen.Passed(n.crash, isStatusWrite) {
			accepted[write.URL.Path] = write.Code == http.StatusOK
		}
		if len(accepted) < hollowPods || slices.Contains(boolValues(accepted), false) {
			return fmt.Errorf("statuses accepted without the cloud: %v", accepted)
		}
		return nil
	}))
	n.waitLeaseAccepted(t, n.crash)
	// kubectl's rights are not on the disk yet: the hub stores them every minute.
	n.waitServed(t, n.crash, "10.7.7.1")
}

// isStatusWrite accepts the writes of pods' statuses.
func isStatusWrite(p harness.Passed) bool {
	return strings.Contains(p.URL.Path, "/pods/") && strings.HasSuffix(p.URL.Path, "/status") && p.Method != http.MethodGet
}

func boolValues(of map[string]bool) []bool {
	var values []bool
	for _, value := range of {
		values = append(values, value)
	}
	return values
}

// cloudReturns starts the cloud again: what was written meanwhile arrives, and nothing is listed again.
func (n *nodeLife) cloudReturns(t *testing.T) {
	t.Helper()
	ctx := testContext(t)
	mark, err := n.cloud.AuditMark()
	must(t, err)
	returned := time.Now()
	must(t, n.cloud.Return(ctx))
	must(t, harness.Poll(ctx, nodeLimit, 100*time.Millisecond, func(ctx context.Context) error {
		_, err := n.startedInCloud(ctx, n.crash) // statuses that the hub accepted without the cloud
		lease, leaseErr := nodeLease(ctx, n.cloud, n.Hub.Node)
		if leaseErr == nil && lease.Spec.RenewTime.Time.Before(returned) {
			leaseErr = fmt.Errorf("the lease was renewed at %s, before the cloud returned", lease.Spec.RenewTime)
		}
		return errors.Join(err, leaseErr, isReady(ctx, n.cloud, n.Hub.Node))
	}))
	n.changeAddress(t, "10.7.7.2")
	n.waitServed(t, n.crash, "10.7.7.2")
	n.checkNoComponentListed(t, returned)
	// A restarted kube-apiserver has no history, so the hub lists each selection once.
	for selection, count := range n.hubLists(t, mark) {
		if count > 1 {
			t.Errorf("the hub listed %s %d times", selection, count)
		}
	}
	must(t, harness.Poll(ctx, nodeLimit, 100*time.Millisecond, n.eventArrived))
}

// hubLists counts the hub's lists per selection since a mark. Proofs of the history and reads of the hub's own
// configuration are no lists of data.
func (n *nodeLife) hubLists(t *testing.T, mark harness.AuditMark) map[string]int {
	t.Helper()
	lists, err := n.cloud.PoolRequests(mark, func(r harness.AuditRequest) bool {
		return r.Verb == "list" && strings.HasPrefix(r.Agent, "leader-yurthub") && r.Code == http.StatusOK
	})
	must(t, err)
	counts := map[string]int{}
	for _, list := range lists {
		if query := list.Query; query.Get("limit") != "1" && !query.Has("continue") {
			counts[fmt.Sprintf("%s %s %s", list.Resource, query.Get("fieldSelector"), query.Get("labelSelector"))]++
		}
	}
	return counts
}

// eventArrived returns nil if the cloud has the event that kube-proxy wrote at its start without the cloud.
func (n *nodeLife) eventArrived(ctx context.Context) error {
	events, err := n.cloud.Client.EventsV1().Events("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, event := range events.Items {
		if event.ReportingController == "kube-proxy" && !event.EventTime.Time.Before(n.crash) {
			return nil
		}
	}
	return fmt.Errorf("no event of kube-proxy since %s among %d", n.crash.Format("15:04:05"), len(events.Items))
}

// linkReturns cuts the link for a moment while the cloud goes on: the hub resumes without a single list.
func (n *nodeLife) linkReturns(t *testing.T) {
	t.Helper()
	ctx := testContext(t)
	mark, err := n.cloud.AuditMark()
	must(t, err)
	cut := time.Now()
	must(t, n.Hub.Link.Cut())
	must(t, harness.Poll(ctx, nodeLimit, 100*time.Millisecond, func(context.Context) error {
		if out, err := n.tool.try("get", "clusterroles", "--request-timeout=1s"); err == nil {
			return fmt.Errorf("the hub still reaches the cloud: %.100q", out)
		}
		return nil
	}))
	n.changeAddress(t, "10.7.7.3")
	must(t, n.Hub.Link.Resume())
	n.waitServed(t, n.crash, "10.7.7.3")
	if lists := n.hubLists(t, mark); len(lists) > 0 {
		t.Errorf("the hub listed after a cut of its link: %v", lists)
	}
	n.checkNoComponentListed(t, cut)
}

// changeAddress changes the headless service's address in the cloud.
func (n *nodeLife) changeAddress(t *testing.T, address string) {
	t.Helper()
	n.slice.Endpoints[0].Addresses = []string{address}
	slice, err := n.cloud.Client.DiscoveryV1().EndpointSlices(hollowSpace).Update(testContext(t), n.slice, metav1.UpdateOptions{})
	must(t, err)
	n.slice = slice
}

// checkNoComponentListed checks that neither kubelet nor kube-proxy listed since a time.
func (n *nodeLife) checkNoComponentListed(t *testing.T, since time.Time) {
	t.Helper()
	for name, seen := range map[string]*harness.AgentProxy{"kubelet": n.Kubelet.Seen, "kube-proxy": n.Proxy.Seen} {
		if whole := seen.Passed(since, harness.Passed.IsWhole); len(whole) > 0 {
			t.Errorf("%s listed again: %v", name, whole)
		}
	}
}
