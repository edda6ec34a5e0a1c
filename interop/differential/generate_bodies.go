package differential

import "net/http"

// bodyEndpoint accepts a body other than an object of the resource in its path.
type bodyEndpoint struct {
	name   string
	method string
	path   string
	body   string
	// made are the preparing steps.
	made []Step
}

// bodyEndpoints are the subresources with a body, and the review kinds.
func bodyEndpoints() []bodyEndpoint {
	pod := []Step{create(pods, pods.make("a"))}
	account := []Step{create(serviceAccounts, serviceAccounts.make("a"))}
	space := []Step{create(namespaces, namespaces.make("a"))}
	const authz, authn = "/apis/authorization.k8s.io/v1/", "/apis/authentication.k8s.io/v1/"
	return []bodyEndpoint{
		{"binding", http.MethodPost, pods.item("a") + "/binding", bindingBody, pod},
		{"eviction", http.MethodPost, pods.item("a") + "/eviction", evictionBody("v1"), pod},
		{"eviction-v1beta1", http.MethodPost, pods.item("a") + "/eviction", evictionBody("v1beta1"), pod},
		{"finalize", http.MethodPut, namespaces.item("a") + "/finalize", namespaces.make("a", `{"spec":{"finalizers":[]}}`), space},
		{"namespace-status", http.MethodPut, namespaces.item("a") + "/status", namespaces.make("a"), space},
		{"pod-status", http.MethodPut, pods.item("a") + "/status", pods.make("a", `{"status":{"phase":"Running"}}`), pod},
		{"token", http.MethodPost, serviceAccounts.item("a") + "/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"audiences":["x"]}}`, account},
		{"self-access", http.MethodPost, authz + "selfsubjectaccessreviews", `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"nonResourceAttributes":{"verb":"get","path":"/x"}}}`, nil},
		{"access", http.MethodPost, authz + "subjectaccessreviews", `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":{"user":"nobody","nonResourceAttributes":{"verb":"get","path":"/x"}}}`, nil},
		{"self", http.MethodPost, authn + "selfsubjectreviews", `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`, nil},
		{"tokens", http.MethodPost, authn + "tokenreviews", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":"junk"}}`, nil},
		{"delete-collection", http.MethodDelete, configMaps.collection(), `{"apiVersion":"v1","kind":"DeleteOptions","gracePeriodSeconds":0}`, []Step{create(configMaps, configMaps.make("a"))}},
	}
}

const bindingBody = `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"a","namespace":"{ns}"},"target":{"kind":"Node","name":"n"}}`

func evictionBody(version string) string {
	return `{"apiVersion":"policy/` + version + `","kind":"Eviction","metadata":{"name":"a","namespace":"{ns}"},"deleteOptions":{"gracePeriodSeconds":0}}`
}

// bodyScripts send each of these bodies in every encoding, and malformed bodies.
func bodyScripts() []Script {
	var scripts []Script
	for _, endpoint := range bodyEndpoints() {
		add := func(name, body, contentType string, encoding Encoding, query string) {
			step := Step{Method: endpoint.method, Path: endpoint.path, Query: query, Body: body, ContentType: contentType, Encoding: encoding}
			steps := append(endpoint.made[:len(endpoint.made):len(endpoint.made)], step)
			scripts = append(scripts, Script{ID: "media/" + endpoint.name + "/" + name, Steps: steps})
		}
		for name, form := range sorted(bodies) {
			add(name, endpoint.body, form.contentType, form.encoding, "")
		}
		for name, body := range sorted(brokenBodies) {
			if name != "deep" {
				add("broken-"+name, body, jsonType, Raw, "")
			}
		}
		add("broken-protobuf", "k8s\x00\x0a\x02v1", protobufType, Raw, "")
		add("empty-protobuf", "", protobufType, Raw, "")
		add("other-kind", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}`, jsonType, Raw, "")
		add("other-kind-protobuf", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}`, protobufType, Protobuf, "")
		add("unknown-field", `{"nonsense":1,`+endpoint.body[1:], jsonType, Raw, "")
		add("unknown-field-strict", `{"nonsense":1,`+endpoint.body[1:], jsonType, Raw, "fieldValidation=Strict")
		add("dry-run", endpoint.body, jsonType, Raw, "dryRun=All")
		add("dry-run-bad", endpoint.body, jsonType, Raw, "dryRun=Some")
		add("accept-protobuf", endpoint.body, jsonType, Raw, "")
		scripts[len(scripts)-1].Steps[len(endpoint.made)].Accept = protobufType
		add("pretty", endpoint.body, jsonType, Raw, "pretty=true")
	}
	return append(scripts, subresourceScripts()...)
}

// subresourceScripts are the effects of bindings and evictions on a pod.
func subresourceScripts() []Script {
	pod := create(pods, pods.make("a"))
	bound := create(pods, pods.make("a", `{"spec":{"nodeName":"n"}}`))
	post := func(subresource, body string) Step {
		return Step{Method: http.MethodPost, Path: pods.item("a") + "/" + subresource, ContentType: jsonType, Body: body}
	}
	bind := func(metadata, target string) Step {
		return post("binding", `{"apiVersion":"v1","kind":"Binding","metadata":`+metadata+`,"target":`+target+`}`)
	}
	evict := func(options string) Step {
		return post("eviction", `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"a"},"deleteOptions":`+options+`}`)
	}
	const name, node = `{"name":"a"}`, `{"kind":"Node","name":"n"}`
	after := func(id string, steps ...Step) Script {
		steps[len(steps)-1] = steps[len(steps)-1].compared()
		return Script{ID: "below-pod/" + id, Steps: append(steps, get(pods, "a"))}
	}
	return []Script{
		after("binding", pod, bind(name, node)),
		after("binding-twice", pod, bind(name, node), bind(name, `{"kind":"Node","name":"m"}`)),
		after("binding-labels", pod, bind(`{"name":"a","labels":{"colour":"blue","x":"1"},"annotations":{"y":"2"}}`, node)),
		after("binding-uid", pod, bind(`{"name":"a","uid":"5f4c2a8e-0000-4000-8000-000000000000"}`, node)),
		after("binding-own-uid", pod, bind(`{"name":"a","uid":"{uid:0}"}`, node)),
		after("binding-rv", pod, bind(`{"name":"a","resourceVersion":"5"}`, node)),
		after("binding-own-rv", pod, bind(`{"name":"a","resourceVersion":"{rv:0}"}`, node)),
		after("binding-kind", pod, bind(name, `{"kind":"Pod","name":"n"}`)),
		after("binding-no-target", pod, bind(name, `{}`)),
		after("binding-no-name", pod, bind(`{}`, node)),
		after("binding-other-name", pod, bind(`{"name":"other"}`, node)),
		after("binding-other-namespace", pod, bind(`{"name":"a","namespace":"other"}`, node)),
		after("binding-missing", bind(name, node)),
		after("binding-deleting", create(pods, pods.make("a", metaVariants["finalizer"])), remove(pods, "a", ""), bind(name, node)),
		after("eviction", bound, evict(`{}`)),
		after("eviction-none", bound, evict(`null`)),
		after("eviction-now", bound, evict(`{"gracePeriodSeconds":0}`)),
		after("eviction-dry", bound, evict(`{"dryRun":["All"]}`)),
		after("eviction-dry-query", bound, evict(`{}`).query("dryRun=All")),
		after("eviction-dry-bad", bound, evict(`{"dryRun":["Some"]}`)),
		after("eviction-uid", bound, evict(`{"preconditions":{"uid":"5f4c2a8e-0000-4000-8000-000000000000"}}`)),
		after("eviction-own-uid", bound, evict(`{"preconditions":{"uid":"{uid:0}"}}`)),
		after("eviction-rv", bound, evict(`{"preconditions":{"resourceVersion":"5"}}`)),
		after("eviction-policy", bound, evict(`{"propagationPolicy":"Odd"}`)),
		after("eviction-missing", evict(`{}`)),
		after("eviction-twice", bound, evict(`{}`), evict(`{}`)),
		after("eviction-finished", bound, patch(pods, "a", mergePatch, `{"status":{"phase":"Succeeded"}}`).sub("status"), evict(`{}`)),
		after("eviction-unscheduled", pod, evict(`{}`)),
		{ID: "below-pod/eviction-watched", Steps: []Step{bound, watch(pods, "resourceVersion={rv:0}", 2, evict(`{}`))}},
	}
}
