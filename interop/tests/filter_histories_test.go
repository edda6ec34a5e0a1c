package tests

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"yurt.test/interop/harness"
)

const (
	// historiesVariable sets the number of histories of TestFilteredInformers.
	historiesVariable = "YURT_FILTER_HISTORIES"
	// historySeedVariable repeats a run.
	historySeedVariable = "YURT_FILTER_SEED"
	// historiesShort is the number of histories without historiesVariable.
	historiesShort = 20
	// historySteps is the number of steps of one history.
	historySteps = 8
	// historyNamespace holds the objects of all histories.
	historyNamespace = "histories"
	// historyPool is the pool of the hubs.
	historyPool = "views"
	// settleLimit bounds the time until every client has the view after a step. client-go pauses for up to 30 s after
	// several short watches; the limit grows with the load of the machine.
	settleLimit = 30 * time.Second
	// slowSettle is the time from which a step is reported as slow.
	slowSettle = 10 * time.Second
	// restartEvery and leaderEvery are the numbers of histories between two restarts of a hub, and two changes of leader.
	restartEvery, leaderEvery = 10, 40
	// reportEvery is the number of histories between two lines about the progress.
	reportEvery = 25
)

// historyConfigs are the data of the hubs' ConfigMap; nil is no ConfigMap. flanneld has no filter by default.
var historyConfigs = []map[string]string{
	nil,
	{"servicetopology": "flanneld"},
	{"servicetopology": "flanneld/endpointslices#list;watch", "nodeportisolation": "flanneld"},
	{"servicetopology": "-kube-proxy", "discardcloudservice": "flanneld"},
	{"discardcloudservice": "-kube-proxy"},
}

// histories is a pool in a cloud of its own whose objects and inputs change at random.
type histories struct {
	cloud  *harness.Cloud
	pool   *harness.Pool
	random *rand.Rand
	config map[string]string
	// names are those of the present objects, by kind.
	names map[string][]string
	marks int
	// nodes have no hub; their label changes.
	nodes []string
	// veterans live as long as the test, recruits for one history.
	veterans, recruits []*filteredClient
	before             *world
	// took are the times from a change until all clients had their views.
	took []time.Duration
}

// TestFilteredInformers runs random histories of objects and of the filters' inputs: annotations, labels of nodes,
// NodePool, configuration. Watches end, hubs restart and the leader changes now and then.
//
// After every step the stores of client-go's informers behind the hubs equal the view of docs/FILTERS.md, and a fresh
// list. The folds of their handlers equal the stores. No event of a single change shows more than the views before and
// after it.
func TestFilteredInformers(t *testing.T) {
	count := numberFrom(t, historiesVariable, historiesShort)
	seed := uint64(numberFrom(t, historySeedVariable, int(rand.Uint64()>>1)))
	t.Logf("%d histories, %s=%d", count, historySeedVariable, seed)
	h := startHistories(t, rand.New(rand.NewPCG(seed, 18)))
	h.veterans = h.clients(t)
	h.settle(t, "the start")
	started := time.Now()
	for n := range count {
		h.recruits = h.clients(t)
		h.settle(t, fmt.Sprintf("history %d, start", n))
		for step := range historySteps {
			h.step(t, fmt.Sprintf("history %d, step %d", n, step))
		}
		if n%restartEvery == restartEvery-1 {
			h.restart(t, fmt.Sprintf("history %d", n), h.pool.Hubs[h.random.IntN(len(h.pool.Hubs))])
		}
		if n%leaderEvery == leaderEvery-1 {
			h.restart(t, fmt.Sprintf("history %d, leader", n), waitLeader(t, h.pool))
		}
		for _, client := range h.recruits {
			client.stop()
		}
		if n%reportEvery == reportEvery-1 || n == count-1 {
			slices.Sort(h.took)
			t.Logf("%d histories in %s; a step settled after %s (median), %s (p99), %s (worst)", n+1, time.Since(started).Round(time.Second),
				h.took[len(h.took)/2].Round(time.Millisecond), h.took[len(h.took)*99/100].Round(time.Millisecond), h.took[len(h.took)-1].Round(time.Millisecond))
		}
	}
}

func numberFrom(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	number, err := strconv.Atoi(text)
	must(t, err)
	return number
}

func startHistories(t *testing.T, random *rand.Rand) *histories {
	t.Helper()
	ctx := testContext(t)
	cloud, err := harness.StartCloud(ctx, testDir(t))
	must(t, err)
	t.Cleanup(func() {
		if err := cloud.Stop(); err != nil {
			t.Errorf("stopping the cloud: %v", err)
		}
	})
	must(t, cloud.Apply(ctx, []byte(nodePoolCRD)))
	createNamespace(t, cloud.Client, historyNamespace)
	h := &histories{cloud: cloud, random: random, names: map[string][]string{}}
	for i := range 4 {
		name := fmt.Sprintf("other-%d", i)
		must(t, cloud.CreateNode(ctx, name, "elsewhere"))
		h.nodes = append(h.nodes, name)
	}
	must(t, harness.Poll(ctx, readyLimit, 50*time.Millisecond, func(ctx context.Context) error {
		_, err := cloud.Dynamic.Resource(nodePools).List(ctx, metav1.ListOptions{})
		return err
	}))
	h.pool = startPool(t, cloud, harness.PoolOptions{Name: historyPool, Hubs: 2})
	waitLeader(t, h.pool)
	must(t, h.probe(ctx))
	return h
}

// clients starts components of every hub, in both encodings.
func (h *histories) clients(t *testing.T) []*filteredClient {
	return []*filteredClient{
		startFiltered(t, h.pool.Hubs[0], "kube-proxy", jsonFormat),
		startFiltered(t, h.pool.Hubs[1], "kube-proxy", protobufFormat),
		startFiltered(t, h.pool.Hubs[h.random.IntN(2)], "flanneld", []string{jsonFormat, protobufFormat}[h.random.IntN(2)]),
	}
}

func (h *histories) all() []*filteredClient { return slices.Concat(h.veterans, h.recruits) }

// step changes one thing, seldom several, and ends watches before it now and then.
func (h *histories) step(t *testing.T, name string) {
	t.Helper()
	if h.random.IntN(8) == 0 {
		clients := h.all()
		clients[h.random.IntN(len(clients))].faults.End("", nil)
		name += ", watches end"
	}
	changes := 1
	if h.random.IntN(5) == 0 {
		changes = 3
	}
	for range changes {
		what, err := h.change(testContext(t))
		must(t, err)
		name += ", " + what
	}
	before := h.before
	h.settle(t, name)
	for _, client := range h.all() {
		events := client.take()
		for _, event := range events {
			if changes > 1 {
				break // the hub may learn of changes of several resources in any order
			}
			if err := client.unallowed(event, []*world{before, h.before}); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
}

// settle waits until all clients have the view of the present cloud.
func (h *histories) settle(t *testing.T, name string) {
	t.Helper()
	ctx, started := testContext(t), time.Now()
	must(t, h.mark(ctx))
	w, err := readWorld(ctx, h.cloud, h.pool.Name, h.config)
	must(t, err)
	for _, client := range h.all() {
		began, last := time.Now(), error(nil)
		err := harness.Poll(ctx, settleLimit, 5*time.Millisecond, func(ctx context.Context) error {
			err := client.settled(ctx, w)
			if err != nil {
				last = err
			}
			return err
		})
		if waited := time.Since(began); waited > slowSettle {
			t.Logf("%s: %s settled after %s, until then %v", name, client.name, waited.Round(time.Millisecond), last)
		}
		wrong := client.contradictions()
		if err != nil || len(wrong) > 0 {
			t.Fatalf("%s: %v; contradictions: %v", name, err, wrong)
		}
	}
	h.before = w
	h.took = append(h.took, time.Since(started))
}

// probe creates objects whose views show every input of the filters, so that no hub can have missed a change of one.
func (h *histories) probe(ctx context.Context) error {
	nodes := slices.Concat(h.nodes, []string{h.pool.NodeName(0), h.pool.NodeName(1)})
	service := func(name, annotation, value string, kind corev1.ServiceType) error {
		object := h.service(name)
		object.Annotations, object.Spec.Type = map[string]string{annotation: value}, kind
		_, err := h.cloud.Client.CoreV1().Services(historyNamespace).Create(ctx, object, metav1.CreateOptions{})
		return err
	}
	slice, endpoints := h.slice("probe", nodes), h.endpoints("probe", nodes)
	_, err1 := h.cloud.Client.DiscoveryV1().EndpointSlices(historyNamespace).Create(ctx, slice, metav1.CreateOptions{})
	_, err2 := h.cloud.Client.CoreV1().Endpoints(historyNamespace).Create(ctx, endpoints, metav1.CreateOptions{})
	return errors.Join(err1, err2, service("probe", topologyKeys, "openyurt.io/nodepool", corev1.ServiceTypeClusterIP),
		service("probe-balancer", topologyKeys, "unknown", corev1.ServiceTypeLoadBalancer),
		service("probe-port", listenPools, "elsewhere", corev1.ServiceTypeNodePort))
}

// mark changes the probes, which moves the position of every resource. A change of an input has no RV of its own: one that
// concerns an object whose RV is the position reaches handlers with the next position (docs/adr/0035).
func (h *histories) mark(ctx context.Context) error {
	h.marks++
	core, discovery := h.cloud.Client.CoreV1(), h.cloud.Client.DiscoveryV1()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"mark":"%d"}}}`, h.marks)
	_, err1 := core.Services(historyNamespace).Patch(ctx, "probe", types.MergePatchType, patch, metav1.PatchOptions{})
	_, err2 := core.Endpoints(historyNamespace).Patch(ctx, "probe", types.MergePatchType, patch, metav1.PatchOptions{})
	_, err3 := discovery.EndpointSlices(historyNamespace).Patch(ctx, "probe", types.MergePatchType, patch, metav1.PatchOptions{})
	return errors.Join(err1, err2, err3)
}

// restart stops or kills a hub, changes something, and starts the hub again.
func (h *histories) restart(t *testing.T, name string, hub *harness.Hub) {
	t.Helper()
	ctx := testContext(t)
	how := "killed"
	if h.random.IntN(2) == 0 {
		how = "stopped"
		must(t, hub.Process.Stop())
	} else {
		hub.Process.Kill()
	}
	name = fmt.Sprintf("%s: %s %s", name, hub.Node, how)
	for range h.random.IntN(3) {
		what, err := h.changeObjects(ctx)
		must(t, err)
		name += ", " + what
	}
	must(t, hub.Start(ctx))
	waitLeader(t, h.pool)
	h.settle(t, name)
	for _, client := range h.all() {
		client.take()
	}
}

// change makes one random change of an object or an input.
func (h *histories) change(ctx context.Context) (string, error) {
	switch h.random.IntN(10) {
	case 0:
		return h.changeConfig(ctx)
	case 1, 2:
		return h.changeLabel(ctx)
	case 3:
		return h.changePool(ctx)
	default:
		return h.changeObjects(ctx)
	}
}

func (h *histories) changeConfig(ctx context.Context) (string, error) {
	data := historyConfigs[h.random.IntN(len(historyConfigs))]
	h.config = data
	return fmt.Sprintf("configuration %v", data), setHubConfig(ctx, h.cloud, data)
}

func (h *histories) changeLabel(ctx context.Context) (string, error) {
	node, pool := h.nodes[h.random.IntN(len(h.nodes))], []string{historyPool, "elsewhere"}[h.random.IntN(2)]
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, harness.NodePoolLabel, pool)
	_, err := h.cloud.Client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	return fmt.Sprintf("label of %s is %s", node, pool), err
}

// changePool deletes the NodePool, or sets the nodes in its status.
func (h *histories) changePool(ctx context.Context) (string, error) {
	var nodes []string
	if h.random.IntN(4) > 0 {
		nodes = append(nodes, h.pool.NodeName(0), h.pool.NodeName(1))
		nodes = append(nodes, h.nodes[:h.random.IntN(len(h.nodes)+1)]...)
	}
	return fmt.Sprintf("NodePool of %v", nodes), setNodePool(ctx, h.cloud, historyPool, nodes)
}

// changeObjects creates, changes or deletes a Service, or the slice and the Endpoints of one.
func (h *histories) changeObjects(ctx context.Context) (string, error) {
	name := fmt.Sprintf("web-%d", h.random.IntN(3))
	kind := []string{"service", "slice", "endpoints"}[h.random.IntN(3)]
	isThere := slices.Contains(h.names[kind], name)
	verb := "create"
	if isThere {
		verb = []string{"update", "update", "delete"}[h.random.IntN(3)]
	}
	isSame := func(held string) bool { return held == name }
	if verb == "delete" {
		h.names[kind] = slices.DeleteFunc(h.names[kind], isSame)
		if kind == "service" {
			// kube-apiserver deletes the Endpoints with the Service.
			h.names["endpoints"] = slices.DeleteFunc(h.names["endpoints"], isSame)
		}
	} else if !isThere {
		h.names[kind] = append(h.names[kind], name)
	}
	return fmt.Sprintf("%s %s %s", verb, kind, name), h.write(ctx, kind, verb, name)
}

func (h *histories) write(ctx context.Context, kind, verb, name string) error {
	switch kind {
	case "service":
		client := h.cloud.Client.CoreV1().Services(historyNamespace)
		return written(ctx, verb, h.service(name), client.Create, client.Update, client.Delete)
	case "slice":
		client := h.cloud.Client.DiscoveryV1().EndpointSlices(historyNamespace)
		return written(ctx, verb, h.slice(name, h.hosts()), client.Create, client.Update, client.Delete)
	default:
		client := h.cloud.Client.CoreV1().Endpoints(historyNamespace)
		return written(ctx, verb, h.endpoints(name, h.hosts()), client.Create, client.Update, client.Delete)
	}
}

// written makes one write with a typed client.
func written[T metav1.Object](ctx context.Context, verb string, object T,
	create func(context.Context, T, metav1.CreateOptions) (T, error),
	update func(context.Context, T, metav1.UpdateOptions) (T, error),
	remove func(context.Context, string, metav1.DeleteOptions) error,
) error {
	var err error
	switch verb {
	case "create":
		_, err = create(ctx, object, metav1.CreateOptions{})
	case "update":
		_, err = update(ctx, object, metav1.UpdateOptions{})
	default:
		err = remove(ctx, object.GetName(), metav1.DeleteOptions{})
	}
	return err
}

// service has a random topology, type and choice of pools.
func (h *histories) service(name string) *corev1.Service {
	annotations := map[string]string{}
	keys := []string{"", "kubernetes.io/hostname", "openyurt.io/nodepool", "openyurt.io/nodepool", "kubernetes.io/zone", "unknown"}
	if key := keys[h.random.IntN(len(keys))]; key != "" {
		annotations[topologyKeys] = key
	}
	if h.random.IntN(3) == 0 {
		annotations[listenPools] = []string{historyPool, "elsewhere"}[h.random.IntN(2)]
	}
	kinds := []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: historyNamespace, Annotations: annotations},
		Spec: corev1.ServiceSpec{Type: kinds[h.random.IntN(len(kinds))],
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}}},
	}
}

// hosts are the nodes of random endpoints, an empty one for an endpoint without a node.
func (h *histories) hosts() []string {
	candidates := slices.Concat(h.nodes, []string{h.pool.NodeName(0), h.pool.NodeName(1), ""})
	h.random.Shuffle(len(candidates), func(i, j int) { candidates[i], candidates[j] = candidates[j], candidates[i] })
	return candidates[:h.random.IntN(len(candidates))]
}

func (h *histories) slice(service string, hosts []string) *discoveryv1.EndpointSlice {
	port, name := int32(8080), "http"
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: service, Namespace: historyNamespace,
			Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
	}
	for i, host := range hosts {
		endpoint := discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.7.0.%d", i+1)}}
		if host != "" {
			endpoint.NodeName = &host
		}
		slice.Endpoints = append(slice.Endpoints, endpoint)
	}
	return slice
}

func (h *histories) endpoints(service string, hosts []string) *corev1.Endpoints {
	subset := corev1.EndpointSubset{Ports: []corev1.EndpointPort{{Name: "http", Port: 8080}}}
	for i, host := range hosts {
		address := corev1.EndpointAddress{IP: fmt.Sprintf("10.8.0.%d", i+1)}
		if host != "" {
			address.NodeName = &host
		}
		list := &subset.Addresses
		if h.random.IntN(3) == 0 {
			list = &subset.NotReadyAddresses
		}
		*list = append(*list, address)
	}
	endpoints := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: service, Namespace: historyNamespace}}
	if len(subset.Addresses)+len(subset.NotReadyAddresses) > 0 {
		endpoints.Subsets = []corev1.EndpointSubset{subset}
	}
	return endpoints
}
