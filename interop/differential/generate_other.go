package differential

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
)

// getPath reads a path.
func getPath(path string) Step {
	path, query, _ := strings.Cut(path, "?")
	return Step{Method: http.MethodGet, Path: path, Query: query}
}

// pathScripts are requests without an object: discovery, health, and paths that do not exist.
func pathScripts() []Script {
	const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	var scripts []Script
	add := func(family, name string, step Step) {
		scripts = append(scripts, Script{ID: family + "/" + name, Steps: []Step{step}})
	}
	for _, path := range []string{"/api", "/apis", "/api/v1", "/apis/discovery.k8s.io", "/apis/discovery.k8s.io/v1", "/apis/coordination.k8s.io", "/apis/coordination.k8s.io/v1",
		"/apis/events.k8s.io/v1", "/apis/authentication.k8s.io/v1", "/apis/authorization.k8s.io/v1", "/apis/none.example", "/apis/coordination.k8s.io/v9", "/api/v2", "/apis/", "/api/"} {
		for name, accept := range sorted(map[string]string{"none": "", "json": jsonType, "yaml": yamlType, "protobuf": protobufType, "aggregated": aggregated + ",application/json", "xml": "application/xml"}) {
			add("discovery", strings.ReplaceAll(path[1:], "/", "|")+"/"+name, getPath(path).accept(accept))
		}
		add("discovery", strings.ReplaceAll(path[1:], "/", "|")+"/post", Step{Method: http.MethodPost, Path: path, ContentType: jsonType, Body: "{}"})
		add("discovery", strings.ReplaceAll(path[1:], "/", "|")+"/anonymous", getPath(path).as(Anonymous))
		add("discovery", strings.ReplaceAll(path[1:], "/", "|")+"/stranger", getPath(path).as(Stranger))
	}
	for _, path := range []string{"/healthz", "/livez", "/readyz", "/healthz/ping", "/readyz/ping", "/livez/ping", "/healthz/none", "/version", "/version/", "/metrics/none", "/openapi/v3/none", "/openapi/v9",
		"/none", "/none/", "//api/v1", "/api/v1/nones", "/api/v1/namespaces/default/nones", "/api/v1/namespaces/default/nones/a", "/apis/coordination.k8s.io/v1/nones",
		"/apis/coordination.k8s.io/v9/leases", "/api/v1/namespaces/default", "/api/v1/namespaces/default/configmaps/%2e%2e", "/api/v1/namespaces/default/configmaps/a%2fb",
		"/api/v1/namespaces/default/configmaps/a%25b", "/api/v1/namespaces//configmaps?labelSelector=none%3Dsuch", "/api/v1/nodes/none/proxy", "/api/v1/componentstatuses", "/.well-known/openid-configuration", "/swagger.json"} {
		name := strings.ReplaceAll(path[1:], "/", "|")
		add("path", name, getPath(path))
		add("path", name+"/anonymous", getPath(path).as(Anonymous))
		add("path", name+"/stranger", getPath(path).as(Stranger))
		add("path", name+"/bad-token", getPath(path).as(BadToken))
	}
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		add("path", path[1:]+"/head", Step{Method: http.MethodHead, Path: path})
		add("path", path[1:]+"/post", Step{Method: http.MethodPost, Path: path})
		add("path", path[1:]+"/exclude-none", getPath(path+"?exclude=nonesuch"))
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions, "BREW"} {
		add("path", "version/"+method, Step{Method: method, Path: "/version"})
		add("path", "collection/"+method, Step{Method: method, Path: "/api/v1/namespaces/default/nones", ContentType: jsonType, Body: "{}"})
	}
	return scripts
}

// reviewScripts are the review kinds, which are not stored.
func reviewScripts() []Script {
	var scripts []Script
	const authz, authn = "/apis/authorization.k8s.io/v1/", "/apis/authentication.k8s.io/v1/"
	add := func(name, path, body string) {
		for _, identity := range []Identity{Admin, Viewer, Stranger, Anonymous} {
			id := string(identity)
			if id == "" {
				id = "admin"
			}
			scripts = append(scripts, Script{ID: "review/" + name + "/" + id, Steps: []Step{{Method: http.MethodPost, Path: path, ContentType: jsonType, Body: body, As: identity}}})
		}
	}
	self := func(spec string) string {
		return `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":` + spec + `}`
	}
	subject := func(spec string) string {
		return `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":` + spec + `}`
	}
	add("self-get", authz+"selfsubjectaccessreviews", self(`{"resourceAttributes":{"verb":"get","resource":"configmaps","namespace":"default"}}`))
	add("self-secret", authz+"selfsubjectaccessreviews", self(`{"resourceAttributes":{"verb":"get","resource":"secrets","namespace":"default","name":"one"}}`))
	add("self-path", authz+"selfsubjectaccessreviews", self(`{"nonResourceAttributes":{"verb":"get","path":"/metrics"}}`))
	add("self-both", authz+"selfsubjectaccessreviews", self(`{"resourceAttributes":{"verb":"get","resource":"x"},"nonResourceAttributes":{"verb":"get","path":"/x"}}`))
	add("self-none", authz+"selfsubjectaccessreviews", self(`{}`))
	add("self-selector", authz+"selfsubjectaccessreviews", self(`{"resourceAttributes":{"verb":"list","resource":"pods","fieldSelector":{"requirements":[{"key":"spec.nodeName","operator":"In","values":["x"]}]}}}`))
	add("subject-user", authz+"subjectaccessreviews", subject(`{"user":"viewer","groups":["viewers"],"resourceAttributes":{"verb":"list","resource":"pods"}}`))
	add("subject-nobody", authz+"subjectaccessreviews", subject(`{"resourceAttributes":{"verb":"list","resource":"pods"}}`))
	add("subject-denied", authz+"subjectaccessreviews", subject(`{"user":"nobody","resourceAttributes":{"verb":"list","resource":"pods"}}`))
	add("subject-named", authz+"subjectaccessreviews", `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","metadata":{"name":"x"},"spec":{"user":"nobody","resourceAttributes":{"verb":"list","resource":"pods"}}}`)
	add("local", authz+"namespaces/default/localsubjectaccessreviews", `{"apiVersion":"authorization.k8s.io/v1","kind":"LocalSubjectAccessReview","metadata":{"namespace":"default"},"spec":{"user":"stranger","resourceAttributes":{"verb":"get","resource":"secrets","namespace":"default","name":"one"}}}`)
	add("local-mismatch", authz+"namespaces/default/localsubjectaccessreviews", `{"apiVersion":"authorization.k8s.io/v1","kind":"LocalSubjectAccessReview","metadata":{"namespace":"default"},"spec":{"user":"stranger","resourceAttributes":{"verb":"get","resource":"secrets","namespace":"other"}}}`)
	add("rules", authz+"selfsubjectrulesreviews", `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectRulesReview","spec":{"namespace":"default"}}`)
	add("rules-nowhere", authz+"selfsubjectrulesreviews", `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectRulesReview","spec":{}}`)
	add("whoami", authn+"selfsubjectreviews", `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`)
	add("token-junk", authn+"tokenreviews", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":"junk"}}`)
	add("token-none", authn+"tokenreviews", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{}}`)
	for _, resource := range []string{authz + "selfsubjectaccessreviews", authz + "subjectaccessreviews", authn + "selfsubjectreviews", authn + "tokenreviews"} {
		name := resource[strings.LastIndex(resource, "/")+1:]
		scripts = append(scripts, Script{ID: "review/" + name + "/list", Steps: []Step{getPath(resource)}},
			Script{ID: "review/" + name + "/get", Steps: []Step{getPath(resource + "/a")}},
			Script{ID: "review/" + name + "/yaml", Steps: []Step{{Method: http.MethodPost, Path: resource, ContentType: jsonType, Body: "{}", Accept: yamlType}}},
			Script{ID: "review/" + name + "/empty", Steps: []Step{{Method: http.MethodPost, Path: resource, ContentType: jsonType, Body: ""}}})
	}
	return scripts
}

// sampledScripts combines the parameters that the systematic families vary one at a time.
func sampledScripts(random *rand.Rand) []Script {
	const samples = 400
	var scripts []Script
	seen := map[string]bool{}
	acceptNames, optionNames := []string{}, []string{}
	for name := range sorted(accepts) {
		acceptNames = append(acceptNames, name)
	}
	for name := range sorted(writeOptions) {
		optionNames = append(optionNames, name)
	}
	metaNames := []string{"labels", "unknown-field", "label-value-bad", "owner-twice", "generate-name", "finalizer", "no-type", "name-upper", "other-kind", "labels"}
	for len(scripts) < samples {
		k := kinds[random.IntN(len(kinds))]
		accept, option, meta := pick(random, acceptNames), pick(random, optionNames), pick(random, metaNames)
		identity := pick(random, append(slices.Repeat([]Identity{Admin}, 6), identities...))
		encoding, contentType := pick(random, []Encoding{Raw, YAML, Protobuf}), ""
		contentType = map[Encoding]string{Raw: jsonType, YAML: yamlType, Protobuf: protobufType}[encoding]
		if encoding == Protobuf && meta != "labels" && meta != "finalizer" {
			continue // their errors cannot be expressed in protobuf
		}
		var step Step
		verb := pick(random, []string{"create", "update", "patch", "strategic", "delete", "get", "list", "watch"})
		made := []Step{create(k, k.make("a"))}
		switch verb {
		case "create":
			step, made = create(k, k.make("a", metaVariants[meta])).query(writeOptions[option]).content(contentType, encoding), nil
		case "update":
			step = put(k, "a", k.make("a", k.change, metaVariants[meta])).query(writeOptions[option]).content(contentType, encoding)
		case "patch":
			step = patch(k, "a", mergePatch, k.change).query(writeOptions[option])
		case "strategic":
			step = patch(k, "a", strategicPatch, k.change).query(writeOptions[option])
		case "delete":
			step = remove(k, "a", "")
			option = pick(random, slices.Collect(keys(deleteQueries)))
			step = step.query(deleteQueries[option])
		case "get":
			step = get(k, "a")
		case "list":
			made = append(threeObjects(k), caughtUp(k, 2))
			option = pick(random, slices.Collect(keys(listQueries)))
			if strings.HasSuffix(listQueries[option], "Selector=") {
				continue
			}
			step = list(k, listQueries[option])
		case "watch":
			made = append(threeObjects(k), caughtUp(k, 2))
			option = pick(random, slices.Collect(keys(watchQueries)))
			step = watch(k, watchQueries[option].query, watchQueries[option].before)
		}
		step = step.accept(accepts[accept]).as(identity)
		id := fmt.Sprintf("%s/%s/mix/%s+%s+%s+%d+%s", verb, k.name, accept, option, meta, encoding, identity)
		if seen[id] {
			continue
		}
		seen[id] = true
		scripts = append(scripts, Script{ID: id, Steps: append(made, step)})
	}
	return scripts
}

func pick[T any](random *rand.Rand, from []T) T { return from[random.IntN(len(from))] }

// keys are the sorted keys of a map.
func keys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for key := range sorted(m) {
			if !yield(key) {
				return
			}
		}
	}
}
