package differential

import "fmt"

const (
	jsonPatch      = "application/json-patch+json"
	mergePatch     = "application/merge-patch+json"
	strategicPatch = "application/strategic-merge-patch+json"
	applyPatch     = "application/apply-patch+yaml"
)

// jsonPatches are JSON patches on any object.
var jsonPatches = map[string]string{
	"add-label":      `[{"op":"add","path":"/metadata/labels/x","value":"1"}]`,
	"nothing":        `[]`,
	"test-good":      `[{"op":"test","path":"/metadata/labels/case","value":"{id}"},{"op":"add","path":"/metadata/labels/x","value":"1"}]`,
	"test-bad":       `[{"op":"test","path":"/metadata/labels/case","value":"no"}]`,
	"remove-missing": `[{"op":"remove","path":"/metadata/labels/none"}]`,
	"replace-none":   `[{"op":"replace","path":"/metadata/labels/none","value":"x"}]`,
	"copy":           `[{"op":"copy","from":"/metadata/labels/case","path":"/metadata/labels/copied"}]`,
	"move":           `[{"op":"move","from":"/metadata/labels/case","path":"/metadata/labels/moved"}]`,
	"op-odd":         `[{"op":"fold","path":"/metadata"}]`,
	"no-array":       `{"op":"add"}`,
	"not-json":       `[`,
	"empty":          ``,
	"escaped":        `[{"op":"add","path":"/metadata/annotations","value":{}},{"op":"add","path":"/metadata/annotations/a.b~1c","value":"1"}]`,
	"name":           `[{"op":"replace","path":"/metadata/name","value":"other"}]`,
	"whole":          `[{"op":"replace","path":"","value":{}}]`,
	"kind":           `[{"op":"replace","path":"/kind","value":"Other"}]`,
	"unknown-field":  `[{"op":"add","path":"/unknown","value":1}]`,
	"label-number":   `[{"op":"add","path":"/metadata/labels/x","value":1}]`,
	"path-bad":       `[{"op":"add","path":"metadata","value":1}]`,
}

// mergePatches are merge patches on any object; they are sent as strategic merge patches too.
var mergePatches = map[string]string{
	"label":           `{"metadata":{"labels":{"x":"1"}}}`,
	"label-null":      `{"metadata":{"labels":{"case":null}}}`,
	"labels-null":     `{"metadata":{"labels":null}}`,
	"nothing":         `{}`,
	"empty":           ``,
	"null":            `null`,
	"array":           `[]`,
	"not-json":        `{`,
	"rv-current":      `{"metadata":{"resourceVersion":"{rv:0}","labels":{"x":"1"}}}`,
	"rv-other":        `{"metadata":{"resourceVersion":"1","labels":{"x":"1"}}}`,
	"rv-empty":        `{"metadata":{"resourceVersion":"","labels":{"x":"1"}}}`,
	"uid-current":     `{"metadata":{"uid":"{uid:0}","labels":{"x":"1"}}}`,
	"uid-other":       `{"metadata":{"uid":"5f4c2a8e-0000-4000-8000-000000000000"}}`,
	"uid-null":        `{"metadata":{"uid":null,"labels":{"x":"1"}}}`,
	"name":            `{"metadata":{"name":"other"}}`,
	"namespace":       `{"metadata":{"namespace":"other"}}`,
	"kind":            `{"kind":"Other"}`,
	"version":         `{"apiVersion":"v9"}`,
	"metadata-null":   `{"metadata":null}`,
	"created":         `{"metadata":{"creationTimestamp":null}}`,
	"finalizers":      `{"metadata":{"finalizers":["example.com/a","example.com/b"]}}`,
	"owner":           `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"u1"}]}}`,
	"owner-two":       `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"u1"},{"apiVersion":"v1","kind":"Node","name":"m","uid":"u2"}]}}`,
	"unknown-field":   `{"unknown":1}`,
	"label-bad":       `{"metadata":{"labels":{"a b":"1"}}}`,
	"label-number":    `{"metadata":{"labels":{"a":1}}}`,
	"managed-empty":   `{"metadata":{"managedFields":[]}}`,
	"delete-primitve": `{"metadata":{"$deleteFromPrimitiveList/finalizers":["example.com/a"]}}`,
	"patch-delete":    `{"metadata":{"labels":{"$patch":"delete"}}}`,
	"patch-replace":   `{"metadata":{"labels":{"$patch":"replace","only":"1"}}}`,
	"patch-odd":       `{"metadata":{"labels":{"$patch":"odd"}}}`,
}

func patchScripts(k *kind) []Script {
	made := create(k, k.make("a"))
	var scripts []Script
	for name, body := range sorted(jsonPatches) {
		scripts = append(scripts, script("patch", k, "json/"+name, made, patch(k, "a", jsonPatch, body)))
	}
	for name, body := range sorted(mergePatches) {
		scripts = append(scripts, script("patch", k, "merge/"+name, made, patch(k, "a", mergePatch, body)),
			script("patch", k, "strategic/"+name, made, patch(k, "a", strategicPatch, body)))
	}
	for name, body := range sorted(k.patches) {
		scripts = append(scripts, script("patch", k, "merge-own/"+name, made, patch(k, "a", mergePatch, body)),
			script("patch", k, "strategic-own/"+name, made, patch(k, "a", strategicPatch, body)))
	}
	for name, query := range sorted(writeOptions) {
		scripts = append(scripts, script("patch", k, "option/"+name, made, patch(k, "a", mergePatch, `{"unknown":1,"metadata":{"labels":{"x":"1"}}}`).query(query)))
	}
	for _, contentType := range []string{jsonPatch, mergePatch, strategicPatch} {
		scripts = append(scripts,
			script("patch", k, "missing/"+contentType[12:17], patch(k, "a", contentType, map[bool]string{true: `[]`, false: `{}`}[contentType == jsonPatch])),
			script("patch", k, "strict/"+contentType[12:17], made, patch(k, "a", contentType,
				map[bool]string{true: jsonPatches["unknown-field"], false: `{"unknown":1}`}[contentType == jsonPatch]).query("fieldValidation=Strict")))
	}
	for name, contentType := range map[string]string{"json": jsonType, "none": "", "yaml": yamlType, "odd": "application/odd", "charset": mergePatch + "; charset=utf-8", "cbor": "application/apply-patch+cbor"} {
		scripts = append(scripts, script("patch", k, "type/"+name, made, patch(k, "a", contentType, `{}`)))
	}
	for _, name := range []string{"yaml", "protobuf", "table", "partial"} {
		scripts = append(scripts, script("patch", k, "accept/"+name, made, patch(k, "a", mergePatch, k.change).accept(accepts[name])))
	}
	scripts = append(scripts,
		script("patch", k, "change", made, patch(k, "a", mergePatch, k.change), get(k, "a")),
		script("patch", k, "force", made, patch(k, "a", mergePatch, k.change).query("force=true")),
		script("patch", k, "last-finalizer", create(k, k.make("a", metaVariants["finalizer"])), remove(k, "a", ""),
			patch(k, "a", mergePatch, `{"metadata":{"finalizers":null}}`).compared(), get(k, "a")),
		script("patch", k, "while-deleted", create(k, k.make("a", metaVariants["finalizer"])), remove(k, "a", ""),
			patch(k, "a", mergePatch, `{"metadata":{"labels":{"x":"1"}}}`)),
		script("patch", k, "collection", Step{Method: "PATCH", Path: k.collection(), ContentType: mergePatch, Body: `{}`}),
	)
	return append(scripts, applyScripts(k)...)
}

// applyScripts are server-side applies.
func applyScripts(k *kind) []Script {
	apply := func(body, query string) Step { return patch(k, "a", applyPatch, body).query(query) }
	head := k.make("a")
	meta := func(p string) string {
		object := parse(`{}`)
		merge(object, parse(fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q}}`, parse(head)["apiVersion"], parse(head)["kind"], k.objectName("a"))))
		merge(object, parse(p))
		return text(object)
	}
	made := create(k, k.make("a"))
	return []Script{
		script("apply", k, "create", apply(head, "fieldManager=one")),
		script("apply", k, "again", apply(head, "fieldManager=one"), apply(head, "fieldManager=one")),
		script("apply", k, "change", apply(head, "fieldManager=one"), apply(k.make("a", k.change), "fieldManager=one")),
		script("apply", k, "over-create", made, apply(k.make("a", k.change), "fieldManager=one")),
		script("apply", k, "over-create-force", made, apply(k.make("a", k.change), "fieldManager=one&force=true")),
		script("apply", k, "second-manager", apply(head, "fieldManager=one"), apply(meta(`{"metadata":{"labels":{"two":"2"}}}`), "fieldManager=two")),
		script("apply", k, "conflict", apply(meta(`{"metadata":{"labels":{"x":"1"}}}`), "fieldManager=one"), apply(meta(`{"metadata":{"labels":{"x":"2"}}}`), "fieldManager=two")),
		script("apply", k, "removal", apply(k.make("a", metaVariants["labels"]), "fieldManager=one"), apply(head, "fieldManager=one")),
		script("apply", k, "no-name", made, apply(k.make("a", metaVariants["no-name"]), "fieldManager=one")),
		script("apply", k, "no-manager", apply(head, "")),
		script("apply", k, "force-bad", apply(head, "fieldManager=one&force=maybe")),
		script("apply", k, "managed-fields", apply(k.make("a", metaVariants["managed-fields"]), "fieldManager=one")),
		script("apply", k, "name-other", apply(k.make("b"), "fieldManager=one")),
		script("apply", k, "no-type", apply(`{"metadata":{"labels":{"a":"1"}}}`, "fieldManager=one")),
		script("apply", k, "other-version", apply(k.make("a", `{"apiVersion":"v99"}`), "fieldManager=one")),
		script("apply", k, "other-kind", apply(k.make("a", `{"kind":"Odd"}`), "fieldManager=one")),
		script("apply", k, "unknown-field", apply(k.make("a", `{"unknown":1}`), "fieldManager=one")),
		script("apply", k, "uid-missing", apply(k.make("a", `{"metadata":{"uid":"u1"}}`), "fieldManager=one")),
		script("apply", k, "rv-missing", apply(k.make("a", `{"metadata":{"resourceVersion":"5"}}`), "fieldManager=one")),
		script("apply", k, "rv-stale", apply(head, "fieldManager=one"), apply(k.make("a", k.change, `{"metadata":{"resourceVersion":"1"}}`), "fieldManager=one")),
		script("apply", k, "dry-run", apply(head, "fieldManager=one&dryRun=All"), get(k, "a")),
		script("apply", k, "invalid", apply(k.make("a", metaVariants["label-value-bad"]), "fieldManager=one")),
		script("apply", k, "empty", apply("", "fieldManager=one")),
		script("apply", k, "not-yaml", apply("{", "fieldManager=one")),
		script("apply", k, "list-wrong", apply(k.make("a", metaVariants["labels-list"]), "fieldManager=one")),
		script("apply", k, "yaml", patch(k, "a", applyPatch, head).query("fieldManager=one").content(applyPatch, YAML)),
		script("apply", k, "status", made, patch(k, "a", applyPatch, meta(`{"status":{}}`)).sub("status").query("fieldManager=one")),
		script("apply", k, "update-after", apply(head, "fieldManager=one"), put(k, "a", k.make("a", k.change, `{"metadata":{"resourceVersion":"{rv:0}"}}`))),
		script("apply", k, "partial-answer", apply(head, "fieldManager=one").accept(accepts["partial"])),
	}
}
