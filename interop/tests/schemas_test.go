package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"yurt.test/interop/harness"
)

// schemaManifest declares a kind with all supported features of a schema.
const schemaManifest = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"shapes.example.org"},
"spec":{"group":"example.org","scope":"Cluster","names":{"plural":"shapes","singular":"shape","kind":"Shape","listKind":"ShapeList"},
"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","required":["spec"],"properties":{
 "spec":{"type":"object","required":["color"],"properties":{
  "color":{"type":"string","enum":["red","blue"]},
  "size":{"type":"integer","minimum":1,"maximum":9,"default":3},
  "ratio":{"type":"number","minimum":0,"exclusiveMinimum":true,"multipleOf":0.5},
  "code":{"type":"string","minLength":2,"maxLength":4,"pattern":"^[a-z]+$"},
  "port":{"x-kubernetes-int-or-string":true},
  "list":{"type":"array","minItems":1,"maxItems":2,"items":{"type":"string"}},
  "parts":{"type":"array","items":{"type":"object","required":["name"],"properties":{"name":{"type":"string"},"weight":{"type":"integer","default":1}}}},
  "set":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}},
  "map":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],"items":{"type":"object","required":["k"],"properties":{"k":{"type":"string"},"v":{"type":"string"}}}},
  "labels":{"type":"object","minProperties":1,"maxProperties":2,"additionalProperties":{"type":"string"}},
  "flag":{"type":"boolean","nullable":true},
  "inner":{"type":"object","default":{},"properties":{"deep":{"type":"string","default":"x"}}},
  "when":{"type":"string","format":"date-time"},
  "address":{"type":"string","anyOf":[{"format":"ipv4"},{"format":"hostname"}]},
  "net":{"type":"string","format":"cidr"},
  "small":{"type":"integer","format":"int32"},
  "either":{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"},"c":{"type":"string"}},
    "oneOf":[{"required":["a"]},{"required":["b","c"]}],"not":{"properties":{"a":{"enum":[7]}},"required":["a"]}},
  "both":{"type":"string","allOf":[{"minLength":3},{"pattern":"^x"},{"maxLength":5}]},
  "whole":{"type":"object","x-kubernetes-map-type":"atomic","properties":{"a":{"type":"string"},"b":{"type":"string"}}},
  "cpu":{"x-kubernetes-int-or-string":true,"anyOf":[{"type":"integer"},{"type":"string"}],"pattern":"^[0-9]+m$"},
  "free":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}},
 "status":{"type":"object","properties":{"ready":{"type":"boolean"}}}}}}}]}}`

// schemaSpecs are valid and invalid specs. One case is omitted: a whole number where only multiples of a fraction are
// allowed, which kube-apiserver reports as a fault of the schema.
var schemaSpecs = []string{
	`{"color":"red"}`, `{}`, `{"color":"green"}`, `{"color":1}`, `{"color":null}`, `{"color":"red","odd":1,"more":{"x":1}}`,
	`{"color":"red","size":0}`, `{"color":"red","size":10}`, `{"color":"red","size":"3"}`, `{"color":"red","size":1.5}`, `{"color":"red","size":2.0}`, `{"color":"red","size":null}`,
	`{"color":"red","ratio":-0.5}`, `{"color":"red","ratio":0.75}`, `{"color":"red","ratio":1.5}`, `{"color":"red","ratio":"1"}`,
	`{"color":"red","code":"a"}`, `{"color":"red","code":"abcde"}`, `{"color":"red","code":"A1"}`, `{"color":"red","code":["ab"]}`,
	`{"color":"red","port":80}`, `{"color":"red","port":"http"}`, `{"color":"red","port":true}`, `{"color":"red","port":1.5}`,
	`{"color":"red","list":[]}`, `{"color":"red","list":["a","b","c"]}`, `{"color":"red","list":["a",1]}`, `{"color":"red","list":"a"}`, `{"color":"red","list":[null]}`,
	`{"color":"red","parts":[{"name":"a","odd":1},{"weight":2}]}`, `{"color":"red","parts":[{"name":"a"}]}`, `{"color":"red","parts":[1]}`,
	`{"color":"red","set":["a","b","a"]}`, `{"color":"red","map":[{"k":"a"},{"k":"a","v":"x"}]}`, `{"color":"red","map":[{"v":"x"}]}`,
	`{"color":"red","labels":{}}`, `{"color":"red","labels":{"a":"1","b":"2","c":"3"}}`, `{"color":"red","labels":{"a.b/c":1}}`, `{"color":"red","labels":{"a":null,"b":"1"}}`,
	`{"color":"red","flag":null}`, `{"color":"red","flag":"yes"}`, `{"color":"red","inner":{"deep":null,"odd":1}}`, `{"color":"red","inner":null}`,
	`{"color":"red","when":"2026-01-02T03:04:05Z"}`, `{"color":"red","when":"soon"}`, `{"color":"red","when":5}`, `{"color":"red","when":true}`, `{"color":"red","when":[]}`, `{"color":"red","when":{}}`,
	`{"color":"red","address":"1.2.3.4"}`, `{"color":"red","address":"example.com"}`, `{"color":"red","address":"-x-"}`, `{"color":"red","net":"10.0.0.0/33"}`,
	`{"color":"red","small":2147483647}`, `{"color":"red","small":2147483648}`, `{"color":"red","small":1.5}`, `{"color":"red","small":"1"}`, `{"color":"red","small":true}`,
	`{"color":"red","either":{"a":1}}`, `{"color":"red","either":{}}`, `{"color":"red","either":{"b":"x"}}`, `{"color":"red","either":{"a":1,"b":"x","c":"y"}}`, `{"color":"red","either":{"a":7}}`,
	`{"color":"red","both":"xyz"}`, `{"color":"red","both":"ab"}`, `{"color":"red","both":"abcdef"}`, `{"color":"red","both":"xyzxyz"}`,
	`{"color":"red","cpu":5}`, `{"color":"red","cpu":"5m"}`, `{"color":"red","cpu":"m"}`, `{"color":"red","cpu":true}`,
	`{"color":"red","free":{"any":{"thing":[1]}}}`, `"text"`, `null`, `[]`,
}

// TestCustomSchemas writes the same objects to kube-apiserver and to the coordinator, with the same schema from the
// same manifest. Stored objects, rejections with their reasons, and warnings are the same.
func TestCustomSchemas(t *testing.T) {
	ours, theirs := bothShapes(t)
	for i, spec := range schemaSpecs {
		for _, validation := range []string{"Warn", "Strict"} {
			name := fmt.Sprintf("s-%d", i)
			query := "fieldValidation=" + validation
			if validation == "Strict" {
				query += "&dryRun=All"
				name += "-strict"
			}
			want, have := theirs.post(spec, name, query), ours.post(spec, name, query)
			if !want.equals(have) {
				t.Errorf("%s (%s):\nwant %s\nhave %s", spec, validation, want, have)
			}
		}
	}
	// Patches of an existing object.
	for _, patch := range []string{`{"spec":{"size":"big"}}`, `{"spec":{"color":null}}`, `{"spec":{"odd":1,"size":5}}`, `{"spec":{"size":null}}`, `{"spec":{"list":[]}}`} {
		want, have := theirs.patch("s-0", patch), ours.patch("s-0", patch)
		if !want.equals(have) {
			t.Errorf("patch %s:\nwant %s\nhave %s", patch, want, have)
		}
	}
}

// bothShapes are a coordinator and kube-apiserver that serve the kind.
func bothShapes(t *testing.T) (*shapes, *shapes) {
	cloud := sharedCloud(t)
	kinds := testDir(t)
	must(t, os.WriteFile(filepath.Join(kinds, "shapes.yaml"), []byte(schemaManifest), 0o644))
	ours := shapesOf(t, standalone(t, "--custom-resources-path="+kinds).Admin)
	theirs := shapesOf(t, cloud.Admin)
	// The previous test may have deleted it a moment ago.
	must(t, harness.Poll(testContext(t), readyLimit, 50*time.Millisecond, func(ctx context.Context) error {
		return theirs.client.CoreV1().RESTClient().Post().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").
			SetHeader("Content-Type", "application/json").Body([]byte(schemaManifest)).Do(ctx).Error()
	}))
	t.Cleanup(func() {
		theirs.client.CoreV1().RESTClient().Delete().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/shapes.example.org").Do(testContext(t))
	})
	deadline := time.Now().Add(readyLimit)
	for theirs.post(`{"color":"red"}`, "ready", "dryRun=All").Code != 201 {
		if time.Now().After(deadline) {
			t.Fatal("the cloud does not serve the kind")
		}
		time.Sleep(50 * time.Millisecond)
	}
	return ours, theirs
}

// appliedSpecs are applied in order by the manager named first.
var appliedSpecs = [][2]string{
	{"alice", `{"color":"red","map":[{"k":"a","v":"1"}],"set":["x"],"list":["l"],"whole":{"a":"1"},"port":80,"labels":{"a":"1"},"free":{"any":{"thing":[1]}},"when":"2026-01-02T03:04:05Z"}`},
	{"bob", `{"map":[{"k":"b"}],"set":["y"],"labels":{"b":"2"}}`},
	{"bob", `{"odd":1}`}, {"bob", `{"map":[{"k":"c","odd":1}]}`}, {"bob", `{"set":["z","z"]}`}, {"bob", `{"map":[{"v":"x"}]}`}, {"bob", `{"color":5}`},
	{"bob", `{"list":"l"}`}, {"bob", `{"whole":{"b":"2"}}`}, {"bob", `{"map":[{"k":"a","v":"2"}]}`}, {"bob", `{"map":[{"k":"b","v":"3"}],"inner":{"deep":"y"}}`},
	{"alice", `{"color":"red","map":[{"k":"a"}],"set":[],"port":"http"}`}, {"alice", `{"color":"red"}`},
}

// TestCustomApply applies the same configurations to both servers. The schemas define which fields have an owner of
// their own. Some configurations have undeclared fields.
//
// Conformance: 3.C07, 3.C12
func TestCustomApply(t *testing.T) {
	ours, theirs := bothShapes(t)
	for i, applied := range appliedSpecs {
		want, have := theirs.apply(applied[0], applied[1]), ours.apply(applied[0], applied[1])
		if !reflect.DeepEqual(want, have) {
			t.Errorf("%d, %s applies %s:\nwant %v\nhave %v", i, applied[0], applied[1], want, have)
		}
	}
}

// apply returns the compared parts of a response: its code and message, the spec, and the field managers.
func (s *shapes) apply(manager, spec string) []any {
	body := fmt.Sprintf(`{"apiVersion":"example.org/v1","kind":"Shape","metadata":{"name":"applied"},"spec":%s}`, spec)
	result := s.client.CoreV1().RESTClient().Patch("application/apply-patch+yaml").RequestURI("/apis/example.org/v1/shapes/applied?fieldManager=" + manager).
		Body([]byte(body)).Do(testContext(s.t))
	raw, _ := result.Raw()
	var code int
	result.StatusCode(&code)
	var object struct {
		Spec     any
		Message  string
		Metadata struct{ ManagedFields []metav1.ManagedFieldsEntry }
	}
	_ = json.Unmarshal(raw, &object)
	owned := map[string]any{}
	for _, entry := range object.Metadata.ManagedFields {
		var fields any
		_ = json.Unmarshal(entry.FieldsV1.Raw, &fields)
		owned[entry.Manager+" "+string(entry.Operation)] = fields
	}
	return []any{code, object.Message, object.Spec, owned}
}

// shapes is a server with the kind.
type shapes struct {
	t      *testing.T
	client *kubernetes.Clientset
}

func shapesOf(t *testing.T, server harness.Kubeconfig) *shapes {
	client, err := kubernetes.NewForConfig(server.Config("schemas-test"))
	must(t, err)
	return &shapes{t, client}
}

// shapeAnswer holds the compared parts of a response.
type shapeAnswer struct {
	Code     int
	Message  string
	Causes   []metav1.StatusCause
	Spec     any
	Warnings []string
}

func (s *shapes) post(spec, name, query string) shapeAnswer {
	body := fmt.Sprintf(`{"apiVersion":"example.org/v1","kind":"Shape","metadata":{"name":%q},"spec":%s}`, name, spec)
	result := s.client.CoreV1().RESTClient().Post().RequestURI("/apis/example.org/v1/shapes?"+query).SetHeader("Content-Type", "application/json").
		Body([]byte(body)).Do(testContext(s.t))
	raw, _ := result.Raw()
	var code int
	result.StatusCode(&code)
	answer := read(code, raw)
	for _, warning := range result.Warnings() {
		answer.Warnings = append(answer.Warnings, warning.Text)
	}
	return answer
}

func (s *shapes) patch(name, patch string) shapeAnswer {
	result := s.client.CoreV1().RESTClient().Patch("application/merge-patch+json").RequestURI("/apis/example.org/v1/shapes/" + name).
		Body([]byte(patch)).Do(testContext(s.t))
	raw, _ := result.Raw()
	var code int
	result.StatusCode(&code)
	return read(code, raw)
}

func read(code int, raw []byte) shapeAnswer {
	var body struct {
		Spec    any
		Message string
		Details struct{ Causes []metav1.StatusCause }
	}
	_ = json.Unmarshal(raw, &body)
	answer := shapeAnswer{Code: code, Message: body.Message, Causes: body.Details.Causes, Spec: body.Spec}
	// That server checks members in no particular order.
	slices.SortFunc(answer.Causes, func(a, b metav1.StatusCause) int {
		return slices.Compare([]string{a.Field, a.Message}, []string{b.Field, b.Message})
	})
	if len(answer.Causes) > 1 {
		answer.Message = ""
	}
	return answer
}

func (a shapeAnswer) String() string {
	text, _ := json.Marshal(a)
	return string(text)
}

func (a shapeAnswer) equals(other shapeAnswer) bool { return a.String() == other.String() }
