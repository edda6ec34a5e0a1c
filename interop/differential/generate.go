package differential

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
)

// longText exceeds the limit of every text field of an event.
var longText = strings.Repeat("long ", 300)

// bigText makes three objects with it exceed the size from which responses are compressed.
var bigText = strings.Repeat("0123456789", 10000)

// Generate returns every script of the run. The systematic part is always the same, the sampled part depends on seed.
func Generate(seed uint64) ([]Script, error) {
	var scripts []Script
	for _, k := range kinds {
		scripts = append(scripts, createScripts(k)...)
		scripts = append(scripts, readScripts(k)...)
		scripts = append(scripts, listScripts(k)...)
		scripts = append(scripts, updateScripts(k)...)
		scripts = append(scripts, patchScripts(k)...)
		scripts = append(scripts, deleteScripts(k)...)
		scripts = append(scripts, watchScripts(k)...)
		scripts = append(scripts, identityScripts(k)...)
	}
	scripts = append(scripts, pathScripts()...)
	scripts = append(scripts, reviewScripts()...)
	scripts = append(scripts, namedScripts()...)
	scripts = append(scripts, bodyScripts()...)
	scripts = append(scripts, probeScripts()...)
	scripts = append(scripts, sampledScripts(rand.New(rand.NewPCG(seed, seed)))...)
	return scripts, checkUnique(scripts)
}

const (
	jsonType     = "application/json"
	yamlType     = "application/yaml"
	protobufType = "application/vnd.kubernetes.protobuf"
)

// accepts are the Accept headers of the run.
var accepts = map[string]string{
	"json":            jsonType,
	"yaml":            yamlType,
	"protobuf":        protobufType,
	"client-go":       "application/vnd.kubernetes.protobuf,application/json",
	"any":             "*/*",
	"any-application": "application/*",
	"kubectl":         "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
	"table":           "application/json;as=Table;v=v1;g=meta.k8s.io",
	"table-beta":      "application/json;as=Table;v=v1beta1;g=meta.k8s.io",
	"table-yaml":      "application/yaml;as=Table;v=v1;g=meta.k8s.io",
	"table-protobuf":  "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io",
	"table-odd":       "application/json;as=Table;v=v2;g=meta.k8s.io",
	"partial":         "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
	"partial-list":    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
	"partial-pb":      "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
	"partial-list-pb": "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
	"partial-beta":    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1beta1",
	"unknown-as":      "application/json;as=Odd;v=v1;g=x",
	"unknown-as-json": "application/json;as=Odd;v=v1;g=x,application/json",
	"xml":             "application/xml",
	"xml-json":        "application/xml,application/json",
	"weights":         "application/yaml;q=0.5,application/json;q=0.9",
	"charset":         "application/json;charset=utf-8",
	"stream":          "application/json;stream=watch",
	"stream-odd":      "application/json;stream=odd",
	"cbor":            "application/cbor",
	"cbor-json":       "application/cbor,application/json",
	"browser":         "text/html,*/*;q=0.1",
	"junk":            ";;;",
}

// mainAccepts are used on every kind, the others on a few.
var mainAccepts = []string{"yaml", "protobuf", "client-go", "kubectl", "table", "partial", "partial-list", "partial-pb", "partial-list-pb"}

// acceptsFor returns the headers for reads of a kind, by name in a fixed order.
func acceptsFor(k *kind) []string {
	if k == configMaps || k == pods {
		return slices.Sorted(maps.Keys(accepts))
	}
	return mainAccepts
}

// identities other than the administrator.
var identities = []Identity{Viewer, Editor, Stranger, Node, Anonymous, BadToken}

// sorted is a map in the order of its keys.
func sorted[V any](m map[string]V) func(yield func(string, V) bool) {
	return func(yield func(string, V) bool) {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if !yield(key, m[key]) {
				return
			}
		}
	}
}

// script returns a Script with its assembled id.
func script(family string, k *kind, variant string, steps ...Step) Script {
	return Script{ID: fmt.Sprintf("%s/%s/%s", family, k.name, variant), Steps: steps}
}

// create is the request that creates an object.
func create(k *kind, body string) Step {
	return Step{Method: http.MethodPost, Path: k.collection(), ContentType: jsonType, Body: body}
}

// get reads the object with a short name.
func get(k *kind, short string) Step { return Step{Method: http.MethodGet, Path: k.item(short)} }

// put updates the object with a short name.
func put(k *kind, short, body string) Step {
	return Step{Method: http.MethodPut, Path: k.item(short), ContentType: jsonType, Body: body}
}

// patch patches the object with a short name.
func patch(k *kind, short, contentType, body string) Step {
	return Step{Method: http.MethodPatch, Path: k.item(short), ContentType: contentType, Body: body}
}

// remove deletes the object with a short name, with DeleteOptions when body is not empty.
func remove(k *kind, short, body string) Step {
	step := Step{Method: http.MethodDelete, Path: k.item(short), Body: body}
	if body != "" {
		step.ContentType = jsonType
	}
	return step
}

// list lists the script's objects of the kind. Without a namespace, a label excludes those of other scripts.
func list(k *kind, query string) Step {
	step := Step{Method: http.MethodGet, Path: k.collection(), Query: query}
	const own = "labelSelector=case%3D{id}"
	switch {
	case !k.clusterScoped || strings.Contains(query, "case%3D{id}"):
	case strings.Contains(query, "labelSelector="):
		step.Query = strings.Replace(query, "labelSelector=", own+",", 1)
	case query == "":
		step.Query = own
	default:
		step.Query = query + "&" + own
	}
	return step
}

// caughtUp waits until reads from the cache include the write of step n.
func caughtUp(k *kind, n int) Step { return list(k, fmt.Sprintf("resourceVersion={rv:%d}", n)) }

func (s Step) accept(value string) Step    { s.Accept = value; return s }
func (s Step) query(value string) Step     { s.Query = value; return s }
func (s Step) as(identity Identity) Step   { s.As = identity; return s }
func (s Step) sub(subresource string) Step { s.Path += "/" + subresource; return s }
func (s Step) compared() Step              { s.Compare = true; return s }
func (s Step) content(contentType string, e Encoding) Step {
	s.ContentType, s.Encoding = contentType, e
	return s
}

func (s Step) header(name, value string) Step {
	headers := maps.Clone(s.Header)
	if headers == nil {
		headers = map[string]string{}
	}
	headers[name] = value
	s.Header = headers
	return s
}
