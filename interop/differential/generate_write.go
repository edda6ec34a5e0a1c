package differential

import (
	"net/http"
	"strings"
)

// writeOptions are the query parameters of creates, updates and patches.
var writeOptions = map[string]string{
	"dry-run":             "dryRun=All",
	"dry-run-bad":         "dryRun=Some",
	"dry-run-empty":       "dryRun=",
	"dry-run-twice":       "dryRun=All&dryRun=All",
	"manager":             "fieldManager=me",
	"manager-long":        "fieldManager=" + strings.Repeat("m", 129),
	"manager-unprintable": "fieldManager=a%07b",
	"validation-strict":   "fieldValidation=Strict",
	"validation-warn":     "fieldValidation=Warn",
	"validation-ignore":   "fieldValidation=Ignore",
	"validation-bad":      "fieldValidation=Maybe",
	"pretty":              "pretty=true",
	"timeout":             "timeout=5s",
	"timeout-bad":         "timeout=soon",
	"unknown-parameter":   "nonsense=1",
	"several-bad":         "dryRun=Some&fieldValidation=Maybe",
}

// bodies are the forms of a request body: content type, encoding, and the change to the text.
var bodies = map[string]struct {
	contentType string
	encoding    Encoding
}{
	"untyped":        {"", Raw},
	"charset":        {"application/json; charset=utf-8", Raw},
	"yaml":           {yamlType, YAML},
	"yaml-from-json": {yamlType, Raw},
	"yaml-as-json":   {jsonType, YAML},
	"protobuf":       {protobufType, Protobuf},
	"json-as-pb":     {protobufType, Raw},
	"pb-as-json":     {jsonType, Protobuf},
	"xml":            {"application/xml", Raw},
	"text":           {"text/plain", Raw},
	"cbor":           {"application/cbor", Raw},
	"merge-patch":    {"application/merge-patch+json", Raw},
	"type-junk":      {"junk", Raw},
}

// brokenBodies are bodies without any object.
var brokenBodies = map[string]string{
	"empty":         "",
	"null":          "null",
	"array":         "[]",
	"text":          `"x"`,
	"number":        "7",
	"not-json":      "{nope",
	"cut":           `{"kind":"X","metadata":{"name":`,
	"empty-object":  "{}",
	"trailing":      `{"metadata":{"name":"{id}"}} {"more":1}`,
	"duplicate-key": `{"metadata":{"name":"{id}","name":"{id}-b"}}`,
	"deep":          `{"metadata":{"name":"{id}"},"x":` + strings.Repeat("[", 11000) + strings.Repeat("]", 11000) + `}`,
	"case":          `{"Metadata":{"Name":"a"}}`,
}

func createScripts(k *kind) []Script {
	scripts := []Script{
		script("create", k, "plain", create(k, k.make("a"))),
		script("create", k, "twice", create(k, k.make("a")), create(k, k.make("a"))),
		script("create", k, "everywhere", Step{Method: http.MethodPost, Path: k.everywhere(), ContentType: jsonType, Body: k.make("a")}),
		script("create", k, "on-item", Step{Method: http.MethodPost, Path: k.item("a"), ContentType: jsonType, Body: k.make("a")}),
		script("create", k, "again-while-deleted", create(k, k.make("a", metaVariants["finalizer"])), remove(k, "a", ""), create(k, k.make("a"))),
		script("create", k, "huge", create(k, k.make("a", `{"metadata":{"annotations":{"a":"`+strings.Repeat("x", 3<<20)+`"}}}`))),
	}
	if !k.clusterScoped {
		missing := Step{Method: http.MethodPost, Path: strings.Replace(k.collection(), "{ns}", "{id}-none", 1), ContentType: jsonType,
			Body: strings.ReplaceAll(k.make("a"), "{ns}", "{id}-none")}
		scripts = append(scripts, script("create", k, "namespace-missing", missing))
	}
	for name, p := range sorted(metaVariants) {
		scripts = append(scripts, script("create", k, "meta/"+name, create(k, k.make("a", p))))
	}
	for name, p := range sorted(k.variants) {
		scripts = append(scripts, script("create", k, "with/"+name, create(k, k.make("a", p))))
	}
	for name, query := range sorted(writeOptions) {
		scripts = append(scripts, script("create", k, "option/"+name, create(k, k.make("a", metaVariants["unknown-field"])).query(query)))
	}
	for name, body := range sorted(bodies) {
		scripts = append(scripts, script("create", k, "body/"+name, create(k, k.make("a")).content(body.contentType, body.encoding)))
	}
	for name, body := range sorted(brokenBodies) {
		scripts = append(scripts, script("create", k, "broken/"+name, create(k, body)))
	}
	for _, name := range mainAccepts {
		scripts = append(scripts, script("create", k, "accept/"+name, create(k, k.make("a")).accept(accepts[name])))
	}
	return append(scripts,
		script("create", k, "dry-run-twice", create(k, k.make("a")).query("dryRun=All"), create(k, k.make("a"))),
		script("create", k, "then-get", create(k, k.make("a")), get(k, "a")),
	)
}

func updateScripts(k *kind) []Script {
	made := create(k, k.make("a"))
	uid, rv := `{"metadata":{"uid":"{uid:0}"}}`, `{"metadata":{"resourceVersion":"{rv:0}"}}`
	scripts := []Script{
		script("update", k, "change", made, put(k, "a", k.make("a", k.change, rv))),
		script("update", k, "unchanged", made, put(k, "a", k.make("a", rv))),
		script("update", k, "unconditional", made, put(k, "a", k.make("a", k.change))),
		script("update", k, "missing", put(k, "a", k.make("a"))),
		script("update", k, "missing-rv", put(k, "a", k.make("a", `{"metadata":{"resourceVersion":"5"}}`))),
		script("update", k, "missing-uid", put(k, "a", k.make("a", `{"metadata":{"uid":"5f4c2a8e-0000-4000-8000-000000000000"}}`))),
		script("update", k, "stale", made, put(k, "a", k.make("a", k.change, rv)), put(k, "a", k.make("a", k.change, rv, `{"metadata":{"labels":{"n":"1"}}}`))),
		script("update", k, "rv-junk", made, put(k, "a", k.make("a", `{"metadata":{"resourceVersion":"x"}}`))),
		script("update", k, "rv-zero", made, put(k, "a", k.make("a", k.change, `{"metadata":{"resourceVersion":"0"}}`))),
		script("update", k, "uid", made, put(k, "a", k.make("a", k.change, uid, rv))),
		script("update", k, "uid-other", made, put(k, "a", k.make("a", k.change, rv, `{"metadata":{"uid":"5f4c2a8e-0000-4000-8000-000000000000"}}`))),
		script("update", k, "name-other", made, put(k, "a", k.make("b", rv))),
		script("update", k, "name-none", made, put(k, "a", k.make("a", rv, `{"metadata":{"name":null}}`))),
		script("update", k, "namespace-other", made, put(k, "a", k.make("a", rv, `{"metadata":{"namespace":"other"}}`))),
		script("update", k, "namespace-none", made, put(k, "a", k.make("a", rv, `{"metadata":{"namespace":null}}`))),
		script("update", k, "collection", Step{Method: http.MethodPut, Path: k.collection(), ContentType: jsonType, Body: k.make("a")}),
		script("update", k, "server-fields", made, put(k, "a", k.make("a", rv, metaVariants["server-fields"], uid))),
		script("update", k, "finalizer-then-removed", create(k, k.make("a", metaVariants["finalizer"])), remove(k, "a", ""), get(k, "a").compared(),
			put(k, "a", k.make("a")), get(k, "a")),
		script("update", k, "finalizer-while-deleted", create(k, k.make("a", metaVariants["finalizer"])), remove(k, "a", ""),
			put(k, "a", k.make("a", `{"metadata":{"finalizers":["example.com/a","example.com/b"]}}`))),
		script("update", k, "empty", made, put(k, "a", "")),
		script("update", k, "bare", made, put(k, "a", "{}")),
		script("update", k, "immutable-after", create(k, k.make("a", `{"immutable":true}`)), put(k, "a", k.make("a", k.change, `{"immutable":true}`))),
		script("update", k, "immutable-off", create(k, k.make("a", `{"immutable":true}`)), put(k, "a", k.make("a"))),
	}
	for name, p := range sorted(k.updates) {
		scripts = append(scripts, script("update", k, "with/"+name, made, put(k, "a", k.make("a", p, rv))))
	}
	for _, name := range []string{"label-value-bad", "annotation-key-bad", "finalizer-bad", "owner-no-uid", "owner-twice", "unknown-field", "other-kind", "other-version", "no-type", "managed-fields-bad", "label-number"} {
		scripts = append(scripts, script("update", k, "meta/"+name, made, put(k, "a", k.make("a", rv, metaVariants[name]))))
	}
	for name, query := range sorted(writeOptions) {
		scripts = append(scripts, script("update", k, "option/"+name, made, put(k, "a", k.make("a", k.change, metaVariants["unknown-field"])).query(query)))
	}
	for _, name := range []string{"yaml", "protobuf", "untyped", "xml", "json-as-pb"} {
		body := bodies[name]
		scripts = append(scripts, script("update", k, "body/"+name, made, put(k, "a", k.make("a", k.change, rv)).content(body.contentType, body.encoding)))
	}
	for _, name := range []string{"yaml", "protobuf", "table", "partial"} {
		scripts = append(scripts, script("update", k, "accept/"+name, made, put(k, "a", k.make("a", k.change, rv)).accept(accepts[name])))
	}
	return append(scripts, statusScripts(k)...)
}

func statusScripts(k *kind) []Script {
	made := create(k, k.make("a"))
	change := k.statusChange
	if change == "" {
		change = `{"status":{"x":"y"}}`
	}
	scripts := []Script{
		script("status", k, "get", made, get(k, "a").sub("status")),
		script("status", k, "put", made, put(k, "a", k.make("a", change)).sub("status")),
		script("status", k, "merge-patch", made, patch(k, "a", mergePatch, change).sub("status")),
		script("status", k, "post", made, Step{Method: http.MethodPost, Path: k.item("a") + "/status", ContentType: jsonType, Body: k.make("a")}),
	}
	if !k.hasStatus {
		return scripts
	}
	return append(scripts,
		script("status", k, "put-spec", made, put(k, "a", k.make("a", k.change, change)).sub("status"), get(k, "a")),
		script("status", k, "put-labels", made, put(k, "a", k.make("a", change, `{"metadata":{"labels":{"s":"1"},"annotations":{"s":"1"},"finalizers":["example.com/s"]}}`)).sub("status")),
		script("status", k, "put-stale", made, put(k, "a", k.make("a", change, `{"metadata":{"resourceVersion":"1"}}`)).sub("status")),
		script("status", k, "put-missing", put(k, "a", k.make("a", change)).sub("status")),
		script("status", k, "strategic", made, patch(k, "a", strategicPatch, change).sub("status")),
		script("status", k, "spec-by-patch", made, patch(k, "a", mergePatch, k.change).sub("status"), get(k, "a")),
		script("status", k, "main-ignores", made, patch(k, "a", mergePatch, change)),
		script("status", k, "table", made, get(k, "a").sub("status").accept(accepts["table"])),
		script("status", k, "delete", made, remove(k, "a", "").sub("status")),
		script("status", k, "unchanged", made, patch(k, "a", mergePatch, `{}`).sub("status")),
		script("status", k, "dry-run", made, patch(k, "a", mergePatch, change).sub("status").query("dryRun=All"), get(k, "a")),
	)
}
