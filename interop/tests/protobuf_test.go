package tests

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand"
	"os/exec"
	"reflect"
	"testing"

	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	"yurt.test/interop/harness"
)

// fuzzedPerKind is the number of random objects of each kind.
const fuzzedPerKind = 60

// transcodedKinds are the outermost kinds of the transcoder's table, except those of discovery, which no client writes.
var transcodedKinds = []schema.GroupVersionKind{
	{Version: "v1", Kind: "Binding"},
	{Version: "v1", Kind: "ConfigMap"},
	{Version: "v1", Kind: "Endpoints"},
	{Version: "v1", Kind: "Event"},
	{Version: "v1", Kind: "Namespace"},
	{Version: "v1", Kind: "Node"},
	{Version: "v1", Kind: "Pod"},
	{Version: "v1", Kind: "Secret"},
	{Version: "v1", Kind: "Service"},
	{Version: "v1", Kind: "ServiceAccount"},
	{Version: "v1", Kind: "Status"},
	{Version: "v1", Kind: "DeleteOptions"},
	{Version: "v1", Kind: "APIGroupList"},
	{Version: "v1", Kind: "APIResourceList"},
	{Version: "v1", Kind: "APIVersions"},
	{Group: "authentication.k8s.io", Version: "v1", Kind: "SelfSubjectReview"},
	{Group: "authentication.k8s.io", Version: "v1", Kind: "TokenRequest"},
	{Group: "authentication.k8s.io", Version: "v1", Kind: "TokenReview"},
	{Group: "authorization.k8s.io", Version: "v1", Kind: "LocalSubjectAccessReview"},
	{Group: "authorization.k8s.io", Version: "v1", Kind: "SelfSubjectAccessReview"},
	{Group: "authorization.k8s.io", Version: "v1", Kind: "SelfSubjectRulesReview"},
	{Group: "authorization.k8s.io", Version: "v1", Kind: "SubjectAccessReview"},
	{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"},
	{Group: "discovery.k8s.io", Version: "v1", Kind: "EndpointSlice"},
	{Group: "events.k8s.io", Version: "v1", Kind: "Event"},
	{Group: "meta.k8s.io", Version: "v1", Kind: "PartialObjectMetadata"},
}

// TestTranscoderAgreesWithGo fills objects of every kind at random and converts them with our transcoder and with Go's
// own serializers. Both results must be equal, including the zero values that Go writes.
// Conformance: 3.G03, 3.G04, 3.G06
func TestTranscoderAgreesWithGo(t *testing.T) {
	types := runtime.NewScheme()
	must(t, scheme.AddToScheme(types))
	must(t, metav1.AddMetaToScheme(types))
	codecs := serializer.NewCodecFactory(types)
	fill := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(1), codecs).NilChance(0.3).NumElements(1, 3)
	wire := protobuf.NewSerializer(types, types)
	toJSON, toProtobuf := startTranscoder(t, "to-json"), startTranscoder(t, "to-protobuf")
	for _, kind := range transcodedKinds {
		t.Run(kind.Kind+"."+kind.Group, func(t *testing.T) {
			for range fuzzedPerKind {
				filled, err := types.New(kind)
				must(t, err)
				fill.Fill(filled)
				filled.GetObjectKind().SetGroupVersionKind(kind)
				checkTranscoded(t, wire, kind, filled, toJSON, toProtobuf)
			}
		})
	}
}

func checkTranscoded(t *testing.T, wire runtime.Serializer, kind schema.GroupVersionKind, filled runtime.Object, toJSON, toProtobuf *transcoder) {
	t.Helper()
	var body bytes.Buffer
	must(t, wire.Encode(filled, &body))
	// Go's own reading of its protobuf: empty lists are gone, times are whole seconds.
	object := decodeProtobuf(t, wire, kind, body.Bytes())
	want, err := json.Marshal(object)
	must(t, err)
	if got := toJSON.rewrite(t, body.Bytes()); !reflect.DeepEqual(generic(t, got), generic(t, want)) {
		t.Fatalf("protobuf to JSON:\ngot  %s\nwant %s", got, want)
	}
	fromJSON := emptyLike(object)
	must(t, json.Unmarshal(want, fromJSON))
	back := decodeProtobuf(t, wire, kind, toProtobuf.rewrite(t, want))
	if !apiequality.Semantic.DeepEqual(back, fromJSON) {
		got, _ := json.Marshal(back)
		t.Fatalf("JSON to protobuf:\ngot  %s\nwant %s", got, want)
	}
}

func decodeProtobuf(t *testing.T, wire runtime.Serializer, kind schema.GroupVersionKind, body []byte) runtime.Object {
	t.Helper()
	object, _, err := wire.Decode(body, &kind, nil)
	must(t, err)
	object.GetObjectKind().SetGroupVersionKind(kind)
	return object
}

func emptyLike(object runtime.Object) runtime.Object {
	return reflect.New(reflect.TypeOf(object).Elem()).Interface().(runtime.Object)
}

func generic(t *testing.T, text []byte) any {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return value
}

// transcoder is our transcoder as a program: it reads a body and prints the same body in the other format.
type transcoder struct {
	in  io.Writer
	out io.Reader
}

func startTranscoder(t *testing.T, direction string) *transcoder {
	t.Helper()
	path, err := harness.YurtBinary("examples/transcode")
	must(t, err)
	command := exec.CommandContext(testContext(t), path, direction)
	in, err := command.StdinPipe()
	must(t, err)
	out, err := command.StdoutPipe()
	must(t, err)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	must(t, command.Start())
	t.Cleanup(func() {
		_ = in.Close()
		if err := command.Wait(); err != nil {
			t.Errorf("%s: %v: %s", direction, err, stderr.String())
		}
	})
	return &transcoder{in: in, out: out}
}

func (c *transcoder) rewrite(t *testing.T, body []byte) []byte {
	t.Helper()
	frame := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	if _, err := c.in.Write(append(frame, body...)); err != nil {
		t.Fatal(fmt.Errorf("writing a body: %w", err))
	}
	length := make([]byte, 4)
	if _, err := io.ReadFull(c.out, length); err != nil {
		t.Fatal(fmt.Errorf("reading the length of a body: %w", err))
	}
	rewritten := make([]byte, binary.BigEndian.Uint32(length))
	if _, err := io.ReadFull(c.out, rewritten); err != nil {
		t.Fatal(fmt.Errorf("reading a body: %w", err))
	}
	return rewritten
}
