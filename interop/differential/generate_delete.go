package differential

import (
	"net/http"
)

// deleteBodies are DeleteOptions.
var deleteBodies = map[string]string{
	"empty-object":       `{}`,
	"typed":              `{"apiVersion":"v1","kind":"DeleteOptions"}`,
	"typed-meta":         `{"apiVersion":"meta.k8s.io/v1","kind":"DeleteOptions"}`,
	"typed-other":        `{"apiVersion":"v9","kind":"DeleteOptions"}`,
	"kind-other":         `{"apiVersion":"v1","kind":"Odd"}`,
	"grace-0":            `{"gracePeriodSeconds":0}`,
	"grace-30":           `{"gracePeriodSeconds":30}`,
	"grace-negative":     `{"gracePeriodSeconds":-1}`,
	"uid":                `{"preconditions":{"uid":"{uid:0}"}}`,
	"uid-other":          `{"preconditions":{"uid":"5f4c2a8e-0000-4000-8000-000000000000"}}`,
	"rv":                 `{"preconditions":{"resourceVersion":"{rv:0}"}}`,
	"rv-other":           `{"preconditions":{"resourceVersion":"1"}}`,
	"background":         `{"propagationPolicy":"Background"}`,
	"foreground":         `{"propagationPolicy":"Foreground"}`,
	"orphan":             `{"propagationPolicy":"Orphan"}`,
	"policy-odd":         `{"propagationPolicy":"Odd"}`,
	"orphan-dependents":  `{"orphanDependents":true}`,
	"orphan-not":         `{"orphanDependents":false}`,
	"orphan-both":        `{"orphanDependents":true,"propagationPolicy":"Orphan"}`,
	"dry-run":            `{"dryRun":["All"]}`,
	"dry-run-odd":        `{"dryRun":["Some"]}`,
	"unknown-field":      `{"unknown":1}`,
	"wrong-type":         `{"gracePeriodSeconds":"0"}`,
	"not-json":           `{`,
	"array":              `[]`,
	"ignore-read-errors": `{"ignoreStoreReadErrorWithClusterBreakingPotential":true}`,
}

// deleteQueries are the same as parameters.
var deleteQueries = map[string]string{
	"grace":      "gracePeriodSeconds=0",
	"grace-bad":  "gracePeriodSeconds=x",
	"policy":     "propagationPolicy=Background",
	"policy-odd": "propagationPolicy=Odd",
	"dry-run":    "dryRun=All",
	"dry-odd":    "dryRun=Odd",
	"orphan":     "orphanDependents=false",
	"pretty":     "pretty=1",
}

func deleteScripts(k *kind) []Script {
	made := create(k, k.make("a"))
	finalized := create(k, k.make("a", metaVariants["finalizer"]))
	three := threeObjects(k)
	collection := func(query string) Step {
		step := list(k, query)
		step.Method = http.MethodDelete
		return step
	}
	scripts := []Script{
		script("delete", k, "plain", made, remove(k, "a", "").compared(), get(k, "a")),
		script("delete", k, "missing", remove(k, "a", "")),
		script("delete", k, "twice", made, remove(k, "a", `{"gracePeriodSeconds":0}`), remove(k, "a", "")),
		script("delete", k, "finalizer", finalized, remove(k, "a", "").compared(), remove(k, "a", "").compared(), get(k, "a")),
		script("delete", k, "finalizer-grace", finalized, remove(k, "a", `{"gracePeriodSeconds":0}`).compared(), get(k, "a")),
		script("delete", k, "recreated", made, remove(k, "a", `{"gracePeriodSeconds":0}`), create(k, k.make("a"))),
		script("delete", k, "body-beats-query", made, remove(k, "a", `{"propagationPolicy":"Background"}`).query("propagationPolicy=Odd")),
		script("delete", k, "yaml", made, remove(k, "a", `{"apiVersion":"v1","kind":"DeleteOptions","gracePeriodSeconds":0}`).content(yamlType, YAML)),
		script("delete", k, "protobuf", made, remove(k, "a", `{"apiVersion":"v1","kind":"DeleteOptions","gracePeriodSeconds":0}`).content(protobufType, Protobuf)),
		script("delete", k, "body-untyped", made, remove(k, "a", `{"gracePeriodSeconds":0}`).content("", Raw)),
		script("delete", k, "body-xml", made, remove(k, "a", `{"gracePeriodSeconds":0}`).content("application/xml", Raw)),
		script("delete-collection", k, "all", append(three[:3:3], collection("labelSelector=case%3D{id}").compared(), list(k, ""))...),
		script("delete-collection", k, "empty", collection("labelSelector=case%3D{id}")),
		script("delete-collection", k, "label", append(three[:3:3], collection("labelSelector=colour%3Dred,case%3D{id}").compared(), list(k, ""))...),
		script("delete-collection", k, "field", append(three[:3:3], collection("fieldSelector=metadata.name%3D"+k.objectName("a")), list(k, ""))...),
		script("delete-collection", k, "dry-run", append(three[:3:3], collection("labelSelector=case%3D{id}&dryRun=All").compared(), list(k, ""))...),
		script("delete-collection", k, "bad-label", collection("labelSelector=a+b")),
		script("delete-collection", k, "bad-limit", collection("labelSelector=case%3D{id}&limit=x")),
		script("delete-collection", k, "limit", append(three[:3:3], collection("labelSelector=case%3D{id}&limit=2").compared(), list(k, ""))...),
		script("delete-collection", k, "finalizer", finalized, collection("labelSelector=case%3D{id}").compared(), list(k, "")),
		script("delete-collection", k, "table", append(three[:3:3], collection("labelSelector=case%3D{id}").accept(accepts["table"]))...),
		script("delete-collection", k, "protobuf", append(three[:3:3], collection("labelSelector=case%3D{id}").accept(accepts["protobuf"]))...),
		script("delete-collection", k, "everywhere", Step{Method: http.MethodDelete, Path: k.everywhere(), Query: "labelSelector=case%3D{id}"}),
	}
	for name, body := range sorted(deleteBodies) {
		scripts = append(scripts, script("delete", k, "options/"+name, made, remove(k, "a", body).compared(), get(k, "a")))
	}
	for name, query := range sorted(deleteQueries) {
		scripts = append(scripts, script("delete", k, "query/"+name, made, remove(k, "a", "").query(query)))
	}
	for _, name := range []string{"yaml", "protobuf", "table", "partial", "partial-pb"} {
		scripts = append(scripts, script("delete", k, "accept/"+name, made, remove(k, "a", "").accept(accepts[name])))
	}
	return scripts
}

// identityScripts try every verb as every identity.
func identityScripts(k *kind) []Script {
	made := create(k, k.make("a"))
	requests := map[string]Step{
		"get":               get(k, "a"),
		"list":              list(k, ""),
		"watch":             watch(k, "resourceVersion={rv:0}", 0),
		"create":            create(k, k.make("b")),
		"update":            put(k, "a", k.make("a", k.change, `{"metadata":{"resourceVersion":"{rv:0}"}}`)),
		"update-creates":    put(k, "b", k.make("b")),
		"patch":             patch(k, "a", mergePatch, k.change),
		"delete":            remove(k, "a", ""),
		"delete-collection": {Method: http.MethodDelete, Path: k.collection(), Query: "labelSelector=case%3D{id}"},
		"status":            patch(k, "a", mergePatch, `{}`).sub("status"),
		"everywhere":        {Method: http.MethodGet, Path: k.everywhere(), Query: "labelSelector=case%3D{id}"},
	}
	var scripts []Script
	for verb, step := range sorted(requests) {
		for _, identity := range identities {
			scripts = append(scripts, script("as", k, verb+"/"+string(identity), made, step.as(identity)))
		}
	}
	for _, name := range []string{"yaml", "protobuf", "table"} {
		scripts = append(scripts, script("as", k, "forbidden-"+name, made, get(k, "a").as(Stranger).accept(accepts[name])),
			script("as", k, "unauthorized-"+name, get(k, "a").as(BadToken).accept(accepts[name])))
	}
	return scripts
}
