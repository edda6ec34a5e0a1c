package tests

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"yurt.test/interop/harness"
)

// TestPing holds a silent watch whose client verifies the connection every second: it survives. Over a link that
// forwards nothing, the same client gives up.
// Conformance: 2.92
func TestPing(t *testing.T) {
	// The transport reads both at its creation.
	t.Setenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "1")
	t.Setenv("HTTP2_PING_TIMEOUT_SECONDS", "10")
	coordinator := standalone(t)
	link, err := harness.NewLink(strings.TrimPrefix(coordinator.URL, "https://"))
	must(t, err)
	t.Cleanup(link.Close)
	server := coordinator.Admin
	server.Server = link.URL()
	client, err := kubernetes.NewForConfig(server.Config("ping-test"))
	must(t, err)
	list, err := client.CoreV1().ConfigMaps("default").List(testContext(t), metav1.ListOptions{})
	must(t, err)
	timeout := int64(600)
	watch, err := client.CoreV1().ConfigMaps("default").Watch(testContext(t), metav1.ListOptions{ResourceVersion: list.ResourceVersion, TimeoutSeconds: &timeout})
	must(t, err)
	defer watch.Stop()
	before := link.Down()
	select {
	case event, open := <-watch.ResultChan():
		t.Fatalf("a silent watch says %v, open: %t", event, open)
	case <-time.After(4 * time.Second):
	}
	if link.Down() == before {
		t.Error("no ping, or no response")
	}
	must(t, link.Blackhole())
	select {
	case event, open := <-watch.ResultChan():
		if open && event.Type != "ERROR" {
			t.Errorf("a lost connection says %v", event)
		}
	case <-time.After(readyLimit):
		t.Error("the client did not detect a silent server: it sent no ping")
	}
}

// TestFraming checks the connection headers: there are none over HTTP/2, and streams of unknown length are chunked over
// HTTP/1.1.
// Conformance: 2.93
func TestFraming(t *testing.T) {
	coordinator := standalone(t)
	pair, err := tls.X509KeyPair(coordinator.Admin.Identity.Cert, coordinator.Admin.Identity.Key)
	must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(coordinator.Admin.CA)
	for _, major := range []int{1, 2} {
		transport := &http.Transport{DisableCompression: true, ForceAttemptHTTP2: major == 2,
			TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}}
		defer transport.CloseIdleConnections()
		for _, path := range []string{"/livez", "/version", "/api/v1/namespaces", "/api/v1/namespaces/none", "/api/v1/namespaces/default",
			"/none", "/api/v1/namespaces?watch=1&timeoutSeconds=1"} {
			request, err := http.NewRequestWithContext(testContext(t), http.MethodGet, coordinator.URL+path, nil)
			must(t, err)
			response, err := transport.RoundTrip(request)
			must(t, err)
			body, err := io.ReadAll(response.Body)
			must(t, err)
			must(t, response.Body.Close())
			if response.ProtoMajor != major || len(body) == 0 {
				t.Errorf("%s: HTTP/%d, %d bytes", path, response.ProtoMajor, len(body))
			}
			for _, name := range []string{"Connection", "Transfer-Encoding", "Keep-Alive", "Upgrade", "Proxy-Connection"} {
				if value := response.Header.Get(name); value != "" && major == 2 {
					t.Errorf("%s: %s: %s", path, name, value)
				}
			}
			isChunked := len(response.TransferEncoding) == 1 && response.TransferEncoding[0] == "chunked"
			if isWatch := strings.Contains(path, "watch=1"); isWatch && (isChunked != (major == 1) || response.ContentLength != -1) {
				t.Errorf("%s over HTTP/%d: %v, length %d", path, major, response.TransferEncoding, response.ContentLength)
			}
		}
	}
}

// TestEventRecorder records events as every component does: repeated ones increment the count of the existing event,
// which is created again if it was deleted in the meantime.
// Conformance: 5.10
func TestEventRecorder(t *testing.T) {
	ctx := testContext(t)
	coordinator := standalone(t)
	config := coordinator.Admin.Config("recorder-test")
	spoken := harness.NewFaults()
	config.Wrap(spoken.Wrap)
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	createNamespace(t, client, "recorded")
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	recorder := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "interop", Host: "here"})
	about := &corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "recorded", Name: "p", UID: "u"}
	events := client.CoreV1().Events("recorded")
	one := func(count int32, other string) *corev1.Event {
		t.Helper()
		var found *corev1.Event
		must(t, harness.Poll(ctx, readyLimit, 10*time.Millisecond, func(ctx context.Context) error {
			list, err := events.List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=p,reason=Tested"})
			if err != nil {
				return err
			}
			if len(list.Items) != 1 || list.Items[0].Count != count || string(list.Items[0].UID) == other {
				return fmt.Errorf("%d events: %v", len(list.Items), list.Items)
			}
			found = &list.Items[0]
			return nil
		}))
		return found
	}
	recorder.Event(about, corev1.EventTypeNormal, "Tested", "it happened")
	first := one(1, "")
	if !strings.HasPrefix(first.Name, "p.") || first.Source.Component != "interop" || first.Message != "it happened" {
		t.Errorf("recorded %v", first)
	}
	recorder.Event(about, corev1.EventTypeNormal, "Tested", "it happened")
	recorder.Event(about, corev1.EventTypeNormal, "Tested", "it happened")
	again := one(3, "")
	if again.UID != first.UID || again.LastTimestamp.Before(&first.LastTimestamp) {
		t.Errorf("counted in %v, first %v", again, first)
	}
	path := "/api/v1/namespaces/recorded/events"
	if sent := spoken.Sent(http.MethodPatch, path+"/"+first.Name); sent != 2 {
		t.Errorf("%d patches for two repetitions", sent)
	}
	must(t, events.Delete(ctx, first.Name, metav1.DeleteOptions{}))
	recorder.Event(about, corev1.EventTypeNormal, "Tested", "it happened")
	one(4, string(first.UID))
	if patches, posts := spoken.Sent(http.MethodPatch, path+"/"+first.Name), spoken.Sent(http.MethodPost, path); patches != 3 || posts != 2 {
		t.Errorf("%d patches and %d creates, want a patch that finds nothing and a create", patches, posts)
	}
}

// TestDiscoveryOfTargets reads as Prometheus does: informers over several roles and namespaces with selectors of both
// kinds, in JSON and in protobuf. Each of them follows added and removed objects.
// Conformance: 5.24
func TestDiscoveryOfTargets(t *testing.T) {
	coordinator := standalone(t)
	for _, format := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		config := coordinator.Admin.Config("discovery-test")
		config.ContentType = format
		client, err := kubernetes.NewForConfig(config)
		must(t, err)
		prefix := "json-"
		if format == runtime.ContentTypeProtobuf {
			prefix = "protobuf-"
		}
		checkTargets(t, client, []string{prefix + "a", prefix + "b"})
	}
}

func checkTargets(t *testing.T, client *kubernetes.Clientset, namespaces []string) {
	ctx := testContext(t)
	stores := map[string]cache.Store{}
	for _, namespace := range namespaces {
		createNamespace(t, client, namespace)
		for resource, example := range map[string]runtime.Object{"pods": &corev1.Pod{}, "services": &corev1.Service{},
			"endpoints": &corev1.Endpoints{}, "endpointslices": &discoveryv1.EndpointSlice{}} {
			getter := client.CoreV1().RESTClient()
			if resource == "endpointslices" {
				getter = client.DiscoveryV1().RESTClient()
			}
			watch := cache.NewFilteredListWatchFromClient(getter, resource, namespace, func(options *metav1.ListOptions) {
				options.LabelSelector = "scrape in (yes, always)"
				if resource == "pods" {
					options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", "n1").String()
				}
			})
			informer := cache.NewSharedIndexInformer(watch, example, 0, cache.Indexers{})
			go informer.RunWithContext(ctx)
			if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
				t.Fatalf("%s in %s: no sync", resource, namespace)
			}
			stores[resource+" "+namespace] = informer.GetStore()
		}
	}
	made := map[string]string{"scraped": "yes", "silent": "no", "loud": "always"}
	for name, scrape := range made {
		labels := map[string]string{"scrape": scrape}
		for _, namespace := range namespaces {
			meta := metav1.ObjectMeta{Name: name, Labels: labels}
			node := "n1"
			if name == "loud" {
				node = "n2"
			}
			_, err := client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{NodeName: node,
				Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{})
			must(t, err)
			_, err = client.CoreV1().Services(namespace).Create(ctx, &corev1.Service{ObjectMeta: meta,
				Spec: corev1.ServiceSpec{ClusterIP: "None", Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
			must(t, err)
			_, err = client.CoreV1().Endpoints(namespace).Create(ctx, &corev1.Endpoints{ObjectMeta: meta}, metav1.CreateOptions{})
			must(t, err)
			_, err = client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, &discoveryv1.EndpointSlice{ObjectMeta: meta,
				AddressType: discoveryv1.AddressTypeIPv4}, metav1.CreateOptions{})
			must(t, err)
		}
	}
	wantTargets(t, stores, namespaces, map[string]int{"pods": 1, "services": 2, "endpoints": 2, "endpointslices": 2})
	// One object enters by its label, another leaves by it.
	for _, namespace := range namespaces {
		for name, scrape := range map[string]string{"silent": "yes", "scraped": "no"} {
			patch := []byte(fmt.Sprintf(`{"metadata":{"labels":{"scrape":%q}}}`, scrape))
			_, err := client.CoreV1().Services(namespace).Patch(ctx, name, "application/merge-patch+json", patch, metav1.PatchOptions{})
			must(t, err)
		}
		must(t, client.CoreV1().Pods(namespace).Delete(ctx, "scraped", *metav1.NewDeleteOptions(0)))
	}
	wantTargets(t, stores, namespaces, map[string]int{"pods": 0, "services": 2, "endpoints": 2, "endpointslices": 2})
	for _, namespace := range namespaces {
		if _, found, _ := stores["services "+namespace].GetByKey(namespace + "/silent"); !found {
			t.Errorf("the one that was labelled later is not in %s", namespace)
		}
	}
}

func wantTargets(t *testing.T, stores map[string]cache.Store, namespaces []string, want map[string]int) {
	t.Helper()
	must(t, harness.Poll(testContext(t), readyLimit, 10*time.Millisecond, func(context.Context) error {
		var wrong []error
		for _, namespace := range namespaces {
			for resource, count := range want {
				if got := len(stores[resource+" "+namespace].List()); got != count {
					wrong = append(wrong, fmt.Errorf("%d %s in %s, want %d", got, resource, namespace, count))
				}
			}
		}
		return errors.Join(wrong...)
	}))
}
