package tests

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"yurt.test/interop/harness"
)

// besideObjects are a platform engineer's usual objects.
const besideObjects = `apiVersion: v1
kind: ConfigMap
metadata: {name: settings, labels: {app: a}}
data: {k: one, l: two}
---
apiVersion: v1
kind: Secret
metadata: {name: hidden, labels: {app: a}}
stringData: {password: pw}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: runner}
---
apiVersion: v1
kind: Service
metadata: {name: web, labels: {app: a}}
spec: {clusterIP: None, selector: {app: a}, ports: [{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}]}
---
apiVersion: v1
kind: Pod
metadata: {name: a, labels: {app: a}, annotations: {note: first}}
spec: {automountServiceAccountToken: false, containers: [{name: c, image: "img:1", resources: {requests: {cpu: 100m}}, ports: [{containerPort: 80}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: b, labels: {app: b}}
spec: {automountServiceAccountToken: false, containers: [{name: c, image: "img:2"}, {name: d, image: "img:3"}]}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: turn}
spec: {holderIdentity: me, leaseDurationSeconds: 15}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 80, protocol: TCP}]
endpoints: [{addresses: [10.0.0.1], conditions: {ready: true}}, {addresses: [10.0.0.2], conditions: {ready: false}}]
---
apiVersion: v1
kind: Event
metadata: {name: e1}
involvedObject: {kind: Pod, name: a, namespace: beside, apiVersion: v1}
reason: Started
message: It began.
type: Normal
firstTimestamp: "2026-01-01T00:00:00Z"
lastTimestamp: "2026-01-01T00:00:00Z"
count: 2
source: {component: test}
`

const besidePatchedMap = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings","labels":{"app":"a"}},"data":{"k":"changed","l":"two"}}`

// besideBound are pods on a node: one without and one with a controller.
const besideBound = `apiVersion: v1
kind: Pod
metadata: {name: alone, labels: {app: alone}}
spec: {nodeName: beside-node, automountServiceAccountToken: false, containers: [{name: c, image: "img:1"}], volumes: [{name: scratch, emptyDir: {}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: owned, labels: {app: owned}, ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: r, uid: 5f4c2a8e-0000-4000-8000-000000000000, controller: true}]}
spec: {nodeName: beside-node, automountServiceAccountToken: false, containers: [{name: c, image: "img:1"}]}
`

// besideMixed has an error in the middle.
const besideMixed = `apiVersion: v1
kind: ConfigMap
metadata: {name: first, labels: {app: mixed}}
---
apiVersion: v1
kind: Service
metadata: {name: second, labels: {app: mixed}}
spec: {clusterIP: None, ports: [{port: 70000}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: third, labels: {app: mixed}}
`

// besideStep is one command with its input.
type besideStep struct {
	args  string
	stdin string
}

// besideSteps run in this order against both servers. A word in single quotes is one argument.
var besideSteps = []besideStep{
	{"create namespace beside", ""}, {"create namespace beside", ""}, {"get pods", ""},
	{"apply -f -", besideObjects}, {"apply -f -", besideObjects}, {"create -f -", besideObjects},
	{"get pods", ""}, {"get pods -o wide", ""}, {"get pods -o name", ""}, {"get pods --show-labels", ""}, {"get pods -L app", ""}, {"get pods --no-headers", ""},
	{"get pods --sort-by=.metadata.name", ""}, {"get pods --sort-by={.spec.nope}", ""}, {"get pods --chunk-size=1", ""}, {"get pods -l app=a", ""}, {"get pods -l 'app in (a,b),app!=b'", ""}, {"get pods -l 'app=='", ""}, {"get pods -l 'a b'", ""},
	{"get pods --field-selector=status.phase=Pending", ""}, {"get pods --field-selector=spec.nodeName=n1", ""}, {"get pods --field-selector=spec.nope=1", ""}, {"get configmaps --field-selector=data.k=one", ""},
	{"get pods -o jsonpath={.items[*].metadata.name}", ""}, {"get pods -o custom-columns=N:.metadata.name,I:.spec.containers[*].image", ""}, {"get pods -o yaml", ""}, {"get pod a -o json", ""},
	{"get pod a b", ""}, {"get pod a none", ""}, {"get pod none --ignore-not-found", ""}, {"get pod/a service/web", ""}, {"get nope", ""}, {"get pods.nope", ""}, {"get pods a -l x=y", ""},
	{"get services,configmaps,secrets,serviceaccounts,leases,endpointslices", ""}, {"get services -o wide", ""}, {"get service web -o yaml", ""}, {"get events", ""}, {"get events -o wide", ""}, {"get event e1 -o yaml", ""},
	{"get pods -A", ""}, {"get leases,endpointslices -o yaml", ""}, {"get secret hidden -o yaml", ""}, {"get configmap settings -o yaml --show-managed-fields=false", ""}, {"get namespace beside", ""}, {"get namespace beside -o yaml", ""},
	{"describe pod a", ""}, {"describe pods", ""}, {"describe service web", ""}, {"describe configmap settings", ""}, {"describe secret hidden", ""}, {"describe serviceaccount runner", ""}, {"describe endpointslice web-1", ""}, {"describe lease turn", ""}, {"describe pod none", ""},
	{"events", ""}, {"events --for pod/a", ""}, {"events --for pod/b", ""}, {"events --types=Warning", ""},
	{"diff -f -", besideObjects}, {"diff -f -", besidePatchedMap}, {"apply -f - --dry-run=server", besidePatchedMap}, {"apply -f - --dry-run=client", besidePatchedMap}, {"apply -f -", besidePatchedMap}, {"get configmap settings -o jsonpath={.data}", ""},
	{"apply -f - --server-side", besidePatchedMap}, {"apply -f - --server-side", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings"},"dada":{"k":"v"}}`},
	{"apply -f -", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings"},"dada":{"k":"v"}}`}, {"apply -f - --validate=warn", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"extra"},"dada":{"k":"v"}}`}, {"apply -f - --validate=ignore", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"extra"},"dada":{"k":"v"}}`},
	{"apply -f -", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"Bad_Name"}}`}, {"apply -f -", `{"apiVersion":"v1","kind":"Nope","metadata":{"name":"x"}}`}, {"apply -f -", `{"apiVersion":"nope.io/v1","kind":"Nope","metadata":{"name":"x"}}`}, {"apply -f -", `{"kind":"ConfigMap"}`}, {"apply -f -", "a: ["},
	{"apply -f - --prune -l app=a --prune-allowlist=core/v1/Secret", besidePatchedMap}, {"get secrets", ""},
	{"replace -f -", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings"},"data":{"k":"r"}}`}, {"replace -f -", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"none"}}`}, {"replace --force -f -", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings"},"data":{"k":"f"}}`}, {"replace -f -", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings","resourceVersion":"1"}}`},
	{"patch configmap settings -p '{\"data\":{\"x\":\"1\"}}'", ""}, {"patch configmap settings -p '{\"data\":{\"x\":\"1\"}}'", ""}, {"patch configmap settings --type=merge -p '{\"data\":{\"x\":null}}'", ""}, {"patch configmap settings --type=json -p '[{\"op\":\"test\",\"path\":\"/data/k\",\"value\":\"z\"}]'", ""}, {"patch configmap settings --type=json -p '[{\"op\":\"remove\",\"path\":\"/data/none\"}]'", ""}, {"patch pod a -p '{\"spec\":{\"nodeName\":\"x\"}}'", ""}, {"patch pod a --subresource=status --type=merge -p '{\"status\":{\"phase\":\"Running\",\"podIP\":\"10.1.1.1\"}}'", ""}, {"get pod a -o wide", ""},
	{"label pod a x=y", ""}, {"label pod a x=z", ""}, {"label pod a x=z --overwrite", ""}, {"label pod a x-", ""}, {"label pod a x-", ""}, {"label pod a 'b@d=1'", ""}, {"label pods --all tier=t", ""}, {"annotate pod a note=second", ""}, {"annotate pod a note=second --overwrite", ""}, {"annotate pod a note-", ""},
	{"set image pod/a c=img:9", ""}, {"set env pod/a X=1", ""}, {"set serviceaccount pod a runner", ""}, {"edit configmap settings", ""}, {"get configmap settings -o jsonpath={.data}", ""},
	{"wait --for=jsonpath={.status.phase}=Running pod/a --timeout=5s", ""}, {"wait --for=condition=Ready pod/a --timeout=1s", ""}, {"wait --for=delete pod/none --timeout=1s", ""}, {"wait --for=condition=Ready pod/none --timeout=1s", ""}, {"wait --for=create configmap/settings --timeout=5s", ""},
	{"rollout status pod/a", ""}, {"rollout restart pod/a", ""}, {"rollout history pod/a", ""}, {"scale pod/a --replicas=2", ""}, {"autoscale pod/a --max=2", ""}, {"expose pod a --port=80 --cluster-ip=None", ""}, {"get service a -o wide", ""}, {"run p --image=img:1 --restart=Never --overrides='{\"spec\":{\"automountServiceAccountToken\":false}}'", ""}, {"run p --image=img:1", ""},
	{"create configmap lit --from-literal=a=b", ""}, {"create configmap lit --from-literal=a=b", ""}, {"create secret generic gen --from-literal=a=b", ""}, {"create secret docker-registry reg --docker-username=u --docker-password=p", ""}, {"create serviceaccount robot", ""}, {"create service clusterip svc --clusterip=None --tcp=80:80", ""}, {"create configmap dry --from-literal=a=b --dry-run=server -o yaml", ""},
	{"create -f -", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"beside-node"}}`}, {"get nodes beside-node", ""}, {"get nodes beside-node -o wide", ""}, {"describe node beside-node", ""}, {"label node beside-node node-role.kubernetes.io/edge=", ""}, {"get node beside-node", ""}, {"taint node beside-node k=v:NoSchedule", ""}, {"taint node beside-node k=v:NoSchedule", ""}, {"taint node beside-node k:NoSchedule-", ""}, {"cordon beside-node", ""}, {"cordon beside-node", ""}, {"uncordon beside-node", ""},
	{"uncordon beside-node --dry-run=server", ""}, {"cordon none", ""}, {"cordon -l app=none", ""}, {"taint node beside-node k=v:Never", ""}, {"taint node beside-node k=w:NoSchedule --dry-run=server", ""}, {"taint node beside-node k=v:NoSchedule --overwrite", ""}, {"taint node none k:NoExecute-", ""}, {"taint node beside-node k-", ""},
	{"create -f -", besideBound}, {"drain beside-node", ""}, {"drain beside-node --dry-run=client --force", ""}, {"drain beside-node --dry-run=server --force", ""}, {"drain beside-node --force", ""}, {"drain beside-node --pod-selector=app=owned --grace-period=0 --timeout=20s", ""}, {"drain beside-node --force --delete-emptydir-data --grace-period=0 --timeout=20s --disable-eviction", ""}, {"drain none", ""}, {"get pods --field-selector=spec.nodeName=beside-node", ""}, {"describe node beside-node", ""}, {"get node beside-node", ""},
	{"get node beside-node --subresource=status -o jsonpath={.metadata.name}", ""}, {"patch node beside-node --subresource=status --type=merge -p '{\"status\":{\"phase\":\"Running\"}}'", ""}, {"debug node/none --image=x", ""}, {"delete node beside-node", ""},
	{"logs none", ""}, {"logs a", ""}, {"logs b", ""}, {"logs b -c none", ""}, {"logs -l app=zz", ""}, {"exec none -- ls", ""}, {"attach none", ""}, {"port-forward pod/none 80", ""}, {"port-forward pod/b 80", ""}, {"cp none:/x /tmp/beside-none", ""}, {"debug none --image=x", ""},
	{"get events --sort-by=.lastTimestamp", ""}, {"get events --sort-by=.metadata.creationTimestamp -o name", ""}, {"events -A --for pod/a", ""}, {"events --types=Odd", ""}, {"events --types=Normal,Warning --no-headers", ""}, {"get pods,configmaps --chunk-size=2 --no-headers", ""}, {"get pods --server-print=false", ""}, {"get pods -o go-template={{len(.items)}}", ""}, {"get pods -o jsonpath-as-json={.items[*].metadata.name}", ""}, {"get pods -o kyaml", ""}, {"get configmap settings --subresource=status", ""}, {"get pod a --subresource=status -o jsonpath={.status.phase}", ""}, {"get pod a --subresource=scale", ""}, {"get -f -", besideObjects}, {"get configmap/none configmap/settings", ""},
	{"label pod a z=1 --dry-run=server", ""}, {"label pod a z=1 --resource-version=1", ""}, {"annotate pod a z=1 --resource-version=1", ""}, {"apply view-last-applied configmap/settings", ""}, {"apply set-last-applied -f -", besidePatchedMap}, {"set resources pod/a --limits=cpu=1", ""}, {"set selector service/web x=y", ""}, {"set env configmap/settings A=1", ""},
	{"create -f -", besideMixed}, {"apply -f -", besideMixed}, {"apply -f - --server-side --field-manager=me", besideMixed}, {"get configmaps -l app=mixed", ""}, {"create -f - --validate=strict", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"strict"},"dada":{}}`}, {"create -f - --save-config", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"saved"}}`}, {"apply -f - --server-side --field-manager=me --force-conflicts", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings"},"data":{"k":"mine"}}`}, {"apply -f - --server-side --field-manager=other", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings"},"data":{"k":"theirs"}}`}, {"apply -f - --server-side --field-manager=me --dry-run=server -o yaml", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings"},"data":{"k":"dry"}}`}, {"apply -f - --prune", besidePatchedMap}, {"apply -f - --prune --all --prune-allowlist=core/v1/Nope", besidePatchedMap},
	{"patch configmap settings --dry-run=server -p '{\"data\":{\"z\":\"1\"}}'", ""}, {"patch configmap settings -p '{'", ""}, {"patch configmap none -p '{}'", ""}, {"patch service web -p '{\"spec\":{\"ports\":[{\"port\":0}]}}'", ""}, {"replace --raw /api/v1/namespaces/beside/configmaps/none -f -", besidePatchedMap}, {"create --raw /api/v1/namespaces/beside/configmaps -f -", "{}"}, {"delete --raw /api/v1/namespaces/beside/configmaps/none", ""}, {"create token none", ""}, {"create token runner --duration=1s", ""}, {"create token runner --bound-object-kind=Pod --bound-object-name=none", ""},
	{"wait --for=jsonpath='{.data.k}'=mine configmap/settings --timeout=5s", ""}, {"wait --for=jsonpath='{.data.none}' configmap/settings --timeout=1s", ""}, {"wait --for=delete configmap/settings --timeout=1s", ""}, {"wait --for=condition=Ready pods --all --timeout=1s", ""}, {"wait --for=odd pod/a", ""}, {"auth can-i --list --as=jane", ""}, {"auth can-i get /healthz --as=jane", ""}, {"auth can-i get pods --subresource=log --as=jane", ""}, {"get --raw '/api/v1/namespaces/beside/pods?labelSelector=a+b'", ""}, {"get --raw /api/v1/watch/namespaces/beside/nopes", ""},
	{"top pod", ""}, {"top node", ""}, {"auth can-i create pods", ""}, {"auth can-i create nopes", ""}, {"auth can-i get pods/log --as=jane", ""}, {"auth can-i '*' '*'", ""}, {"get pods --as=jane", ""}, {"auth whoami --as=jane --as-group=devs", ""}, {"cluster-info", ""}, {"explain pods.nope", ""}, {"api-resources --api-group=coordination.k8s.io", ""}, {"api-resources --api-group=discovery.k8s.io -o wide", ""},
	{"get --raw /healthz", ""}, {"get --raw /readyz/ping", ""}, {"get --raw /nope", ""}, {"get --raw /api/v1/namespaces/beside/configmaps/none", ""}, {"get --raw /api/v1/nopes", ""}, {"get --raw '/api/v1/namespaces/beside/pods?limit=x'", ""},
	{"delete pod none", ""}, {"delete pod none --ignore-not-found", ""}, {"delete configmap saved --dry-run=server", ""}, {"delete configmap saved --dry-run=client", ""}, {"delete configmap saved --grace-period=5 --wait=false", ""}, {"delete configmap settings --cascade=odd", ""}, {"delete pod a --grace-period=0", ""}, {"delete pod,configmap none", ""}, {"delete configmaps", ""}, {"delete nopes --all", ""}, {"delete pods -l app=zz", ""}, {"delete configmap lit extra", ""}, {"delete pod a --grace-period=0 --force", ""}, {"delete pod b --now", ""}, {"delete service web --cascade=background", ""}, {"delete secrets --all", ""}, {"delete pods --all --wait=false", ""}, {"delete leases,endpointslices,events --all", ""}, {"delete serviceaccounts robot runner", ""}, {"delete -f -", besidePatchedMap}, {"delete namespace none", ""},
}

// besideAlone are commands about APIs that are not served here: each fails with a reason.
var besideAlone = []struct {
	besideStep
	says string
}{
	{besideStep{"get deployments", ""}, `the server doesn't have a resource type "deployments"`},
	{besideStep{"rollout status deployment/x", ""}, `the server doesn't have a resource type "deployment"`},
	{besideStep{"scale deployment/x --replicas=1", ""}, `the server doesn't have a resource type "deployment"`},
	{besideStep{"autoscale deployment x --max=2", ""}, `the server doesn't have a resource type "deployment"`},
	{besideStep{"certificate approve x", ""}, `the server doesn't have a resource type "certificatesigningrequests"`},
	{besideStep{"create deployment d --image=x", ""}, "the server could not find the requested resource (post deployments.apps)"},
	{besideStep{"create quota q", ""}, "the server could not find the requested resource"},
	{besideStep{"auth reconcile -f -", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"r","namespace":"beside"}}`}, "the server could not find the requested resource (post roles.rbac.authorization.k8s.io)"},
	{besideStep{"logs placed", ""}, "pods/log is not served here: this server opens no connections to kubelets, pods or services"},
	{besideStep{"exec placed -- ls", ""}, "pods/exec is not served here"},
	{besideStep{"cp placed:/x /tmp/beside-none", ""}, "pods/exec is not served here"},
	{besideStep{"get --raw /api/v1/namespaces/beside/pods/placed/proxy/x", ""}, "pods/proxy is not served here"},
	{besideStep{"debug placed --image=x", ""}, "ephemeral containers are disabled for this cluster"},
}

// besideNoise are texts that may differ from call to call.
var besideNoise = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`https?://127\.0\.0\.1:[0-9]+`), "https://server"},
	{regexp.MustCompile(`127\.0\.0\.1:[0-9]+`), "server"},
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "<uid>"},
	{regexp.MustCompile(`(resourceVersion"?: ?"?|Resource Version: +)[0-9]+`), "${1}<rv>"},
	{regexp.MustCompile(`2[0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z`), "<time>"},
	{regexp.MustCompile(`(Mon|Tue|Wed|Thu|Fri|Sat|Sun), [0-9]{2} [A-Z][a-z]{2} 2[0-9]{3} [0-9:]+ [+-][0-9]{4}`), "<time>"},
	{regexp.MustCompile(`(?m)(^|[ (])[0-9]+[smh]([0-9]+[smh])?( |\)|$)`), "${1}<age>${3}"},
	{regexp.MustCompile(`(LIVE|MERGED)-[0-9]+`), "$1"},
	{regexp.MustCompile(`(/tmp|\.\.)[^ ]*/`), "<dir>/"},
	{regexp.MustCompile(`(?m)^([-+ @d].*)(\t<time>|[0-9]{4}-[0-9]{2}-[0-9]{2} .*)$`), "$1"},
	{regexp.MustCompile(`[EW][0-9]{4} [0-9:.]+ +[0-9]+ `), "<log> "},
	// Both name the fields that may change; only kube-apiserver prints the difference between two Go structures.
	{regexp.MustCompile(`(?s)(pod updates may not change fields.*?)\n@@ -.*$`), "$1"},
	{regexp.MustCompile(`[ \t]+`), " "},
}

// TestKubectlBeside runs a platform engineer's commands against kube-apiserver and against the coordinator, over the
// embedded store and over etcd. Output and exit codes are the same, except for values that change from call to call. It
// omits features that a coordinator lacks: descriptions of fields (explain) and a garbage collector (--cascade=orphan).
// In category `all` the coordinator has NodePools.
//
// Conformance: 1.30, 1.31
func TestKubectlBeside(t *testing.T) {
	// Admission plugins that a coordinator lacks: they modify pods and nodes for a scheduler and for service accounts.
	cloud, err := harness.StartCloud(testContext(t), testDir(t),
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition,Priority,DefaultTolerationSeconds,PodTopologyLabels")
	must(t, err)
	t.Cleanup(func() { _ = cloud.Stop() })
	ours := standalone(t, cloud.TokenFlags()...)
	overEtcd := standaloneIn(t, "etcd", append(cloud.TokenFlags(), "--etcd-servers="+cloud.EtcdURL(), "--etcd-prefix=/beside")...)
	binary, err := harness.StockBinary("kubectl")
	must(t, err)
	theirs := besideServer{kubectl{t: t, binary: binary, kubeconfig: cloud.AdminFile, home: testDir(t)}}
	mine := besideServer{kubectl{t: t, binary: binary, kubeconfig: ours.AdminFile, home: testDir(t)}}
	shared := besideServer{kubectl{t: t, binary: binary, kubeconfig: overEtcd.AdminFile, home: testDir(t)}}
	for i, step := range besideSteps {
		// Read-only commands print the same over both stores, once their objects are the same: every third is checked.
		runsOverEtcd := step.changes() || i%3 == 0
		var have, haveOverEtcd string
		var group sync.WaitGroup
		group.Go(func() { have = mine.do(step) })
		if runsOverEtcd {
			group.Go(func() { haveOverEtcd = shared.do(step) })
		}
		want := theirs.do(step)
		group.Wait()
		if want != have {
			t.Errorf("%d: kubectl %s\nwant %s\nhave %s", i, step.args, want, have)
		}
		if runsOverEtcd && want != haveOverEtcd {
			t.Errorf("%d, over etcd: kubectl %s\nwant %s\nhave %s", i, step.args, want, haveOverEtcd)
		}
	}
	mine.do(besideStep{"create -f -", strings.NewReplacer("alone", "placed", "beside-node", "node-1").Replace(besideBound)})
	for _, alone := range besideAlone {
		if said := mine.do(alone.besideStep); strings.HasPrefix(said, "0") || !strings.Contains(said, alone.says) {
			t.Errorf("kubectl %s says\n%s\nand not %q", alone.args, said, alone.says)
		}
	}
}

// readers are kubectl's read-only commands.
var readers = []string{"get", "describe", "events", "diff", "wait", "rollout", "top", "auth", "cluster-info", "explain", "api-resources", "logs", "exec", "attach", "port-forward", "cp"}

func (s besideStep) changes() bool {
	return !slices.Contains(readers, strings.Fields(s.args)[0])
}

type besideServer struct{ kubectl }

// do runs a command and returns its output without noise, the exit code first.
func (s besideServer) do(step besideStep) string {
	args := append([]string{"-n", "beside"}, besideWords(step.args)...)
	ctx, cancel := context.WithTimeout(context.Background(), kubectlLimit)
	defer cancel()
	cmd := s.command(ctx, args...)
	cmd.Stdin = strings.NewReader(step.stdin)
	cmd.Env = append(cmd.Env, "KUBE_EDITOR=sed -i 's/k: f$/k: edited/'")
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	_ = cmd.Run()
	text := out.String() + "--\n" + complaints.String()
	for _, noise := range besideNoise {
		text = noise.pattern.ReplaceAllString(text, noise.with)
	}
	return fmt.Sprintf("%d\n%s", cmd.ProcessState.ExitCode(), strings.TrimSpace(text))
}

func besideWords(line string) []string {
	var words []string
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			// A quote in the middle of a word belongs to it.
			if len(words) > 0 && strings.HasSuffix(words[len(words)-1], "=") && strings.HasPrefix(words[len(words)-1], "--") {
				words[len(words)-1] += part
			} else {
				words = append(words, part)
			}
			continue
		}
		words = append(words, strings.Fields(part)...)
	}
	return words
}
