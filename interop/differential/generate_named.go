package differential

import "net/http"

// namedScripts are single situations outside of the families.
func namedScripts() []Script {
	cm := configMaps
	var many []Step
	for _, name := range []string{"a", "b", "c"} {
		many = append(many, create(cm, cm.make(name, `{"data":{"big":"`+bigText+`"}}`)))
	}
	finalize := func(body string) Step {
		return Step{Method: http.MethodPut, Path: namespaces.item("a") + "/finalize", ContentType: jsonType, Body: body}
	}
	made := create(namespaces, namespaces.make("a"))
	inside := Step{Method: http.MethodPost, Path: "/api/v1/namespaces/{id}-a/configmaps", ContentType: jsonType, Body: `{"metadata":{"name":"x"}}`}
	event := create(events, events.make("a"))
	eventV1 := create(eventsV1, eventsV1.make("a"))
	pod := create(pods, pods.make("a"))
	bound := create(pods, pods.make("a", `{"spec":{"nodeName":"n"}}`))
	return []Script{
		{ID: "named/gzip/list", Steps: append(many[:3:3], list(cm, "").header("Accept-Encoding", "gzip"))},
		{ID: "named/gzip/list-quality", Steps: append(many[:3:3], list(cm, "").header("Accept-Encoding", "gzip;q=1"))},
		{ID: "named/gzip/list-deflate", Steps: append(many[:3:3], list(cm, "").header("Accept-Encoding", "deflate, gzip"))},
		{ID: "named/gzip/protobuf", Steps: append(many[:3:3], list(cm, "").header("Accept-Encoding", "gzip").accept(accepts["protobuf"]))},
		{ID: "named/gzip/watch", Steps: append(many[:3:3], watch(cm, "allowWatchBookmarks=true", 4).header("Accept-Encoding", "gzip"))},
		{ID: "named/configmap/too-much-data", Steps: []Step{create(cm, cm.make("a", `{"data":{"big":"`+bigText+bigText+bigText+bigText+bigText+bigText+bigText+bigText+bigText+bigText+bigText+`"}}`))}},
		{ID: "named/namespace/delete", Steps: []Step{made, remove(namespaces, "a", "").compared(), get(namespaces, "a").compared(), remove(namespaces, "a", "")}},
		{ID: "named/namespace/terminating", Steps: []Step{made, remove(namespaces, "a", ""), inside}},
		{ID: "named/namespace/finalize", Steps: []Step{made, remove(namespaces, "a", ""), finalize(namespaces.make("a", `{"spec":{"finalizers":[]}}`)).compared(), get(namespaces, "a")}},
		{ID: "named/namespace/finalize-live", Steps: []Step{made, finalize(namespaces.make("a", `{"spec":{"finalizers":[]}}`)).compared(), remove(namespaces, "a", "").compared(), get(namespaces, "a")}},
		{ID: "named/namespace/finalize-missing", Steps: []Step{finalize(namespaces.make("a"))}},
		{ID: "named/namespace/finalize-get", Steps: []Step{made, get(namespaces, "a").sub("finalize")}},
		{ID: "named/namespace/default", Steps: []Step{getPath("/api/v1/namespaces/default")}},
		{ID: "named/event/core-as-v1", Steps: []Step{event, get(eventsV1, "a")}},
		{ID: "named/event/v1-as-core", Steps: []Step{eventV1, get(events, "a")}},
		{ID: "named/event/core-listed-as-v1", Steps: []Step{event, list(eventsV1, "")}},
		{ID: "named/event/v1-listed-as-core", Steps: []Step{eventV1, list(events, "")}},
		{ID: "named/event/both-watched", Steps: []Step{event, watch(eventsV1, "resourceVersion={rv:0}", 2, create(eventsV1, eventsV1.make("b")), remove(events, "a", ""))}},
		{ID: "named/event/core-patched-as-v1", Steps: []Step{eventV1, patch(events, "a", mergePatch, `{"message":"changed"}`)}},
		{ID: "named/event/field-across", Steps: []Step{event, list(eventsV1, "fieldSelector=regarding.name%3Dp")}},
		{ID: "named/event/source-field", Steps: []Step{event, list(events, "fieldSelector=source%3Dkubelet")}},
		{ID: "named/event/v1-as-core-created", Steps: []Step{{Method: http.MethodPost, Path: events.collection(), ContentType: jsonType, Body: eventsV1.make("a")}}},
		{ID: "named/event/generate-name", Steps: []Step{create(events, events.make("a", metaVariants["generate-name"]))}},
		{ID: "named/pod/graceful", Steps: []Step{bound, remove(pods, "a", "").compared(), get(pods, "a").compared(), remove(pods, "a", "").compared(), remove(pods, "a", `{"gracePeriodSeconds":0}`).compared(), get(pods, "a")}},
		{ID: "named/pod/graceful-shorter", Steps: []Step{bound, remove(pods, "a", `{"gracePeriodSeconds":30}`).compared(), remove(pods, "a", `{"gracePeriodSeconds":2}`).compared(), remove(pods, "a", `{"gracePeriodSeconds":20}`).compared(), get(pods, "a")}},
		{ID: "named/pod/graceful-watched", Steps: []Step{bound, watch(pods, "resourceVersion={rv:0}", 3, remove(pods, "a", ""), remove(pods, "a", `{"gracePeriodSeconds":0}`))}},
		{ID: "named/pod/unscheduled", Steps: []Step{pod, remove(pods, "a", "").compared(), get(pods, "a")}},
		{ID: "named/pod/finished", Steps: []Step{bound, patch(pods, "a", mergePatch, `{"status":{"phase":"Succeeded"}}`).sub("status"), remove(pods, "a", "").compared(), get(pods, "a")}},
		{ID: "named/pod/scheduled-watched", Steps: []Step{pod, watch(pods, "resourceVersion={rv:0}&fieldSelector=spec.nodeName%3Dn", 0,
			Step{Method: http.MethodPost, Path: pods.item("a") + "/binding", ContentType: jsonType, Body: `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"a"},"target":{"kind":"Node","name":"n"}}`})}},
		{ID: "named/pod/binding", Steps: []Step{pod, {Method: http.MethodPost, Path: pods.item("a") + "/binding", ContentType: jsonType, Body: `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"a"},"target":{"kind":"Node","name":"n"}}`}}},
		{ID: "named/pod/eviction", Steps: []Step{pod, {Method: http.MethodPost, Path: pods.item("a") + "/eviction", ContentType: jsonType, Body: `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"a"}}`}}},
		{ID: "named/pod/log", Steps: []Step{pod, get(pods, "a").sub("log")}},
		{ID: "named/pod/status-phase-watched", Steps: []Step{pod, watch(pods, "resourceVersion={rv:0}&fieldSelector=status.phase%3DRunning", 2,
			patch(pods, "a", mergePatch, `{"status":{"phase":"Running"}}`).sub("status"), patch(pods, "a", mergePatch, `{"status":{"phase":"Failed"}}`).sub("status"))}},
		{ID: "named/lease/node-lease-renewed", Steps: []Step{create(leases, leases.make("a")),
			put(leases, "a", leases.make("a", leases.change, `{"metadata":{"resourceVersion":"{rv:0}","uid":"{uid:0}"}}`)).query("timeout=10s").content(protobufType, Protobuf).accept(accepts["client-go"])}},
		{ID: "named/service/immutable-ip", Steps: []Step{create(services, services.make("a")), patch(services, "a", mergePatch, `{"spec":{"clusterIP":"10.96.7.7"}}`)}},
		{ID: "named/service/ip-kept", Steps: []Step{create(services, services.make("a", `{"spec":{"clusterIP":null}}`)), put(services, "a", services.make("a", `{"spec":{"clusterIP":null,"selector":{"app":"z"}}}`))}},
		{ID: "named/slice/generation", Steps: []Step{create(endpointSlices, endpointSlices.make("a")), patch(endpointSlices, "a", mergePatch, `{"metadata":{"labels":{"x":"1"}}}`).compared(),
			patch(endpointSlices, "a", mergePatch, `{"metadata":{"annotations":{"x":"1"}}}`).compared(), patch(endpointSlices, "a", mergePatch, endpointSlices.change)}},
		{ID: "named/serviceaccount/token", Steps: []Step{create(serviceAccounts, serviceAccounts.make("a")), {Method: http.MethodPost, Path: serviceAccounts.item("a") + "/token", ContentType: jsonType, Body: `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`}}},
		{ID: "named/headers/audit-id", Steps: []Step{getPath("/api/v1/namespaces/default").header("Audit-Id", "8c9d1b6e-0000-4000-8000-00000000abcd")}},
		{ID: "named/headers/warning-duplicate", Steps: []Step{create(cm, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","labels":{"a":"1","a":"2"}},"data":{"x":"1","x":"2"},"extra":1,"more":{"a":1}}`)}},
		{ID: "named/headers/strict-many", Steps: []Step{create(cm, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","labels":{"a":"1","a":"2"}},"data":{"x":"1","x":"2"},"extra":1,"more":{"a":1}}`).query("fieldValidation=Strict")}},
		{ID: "named/impersonate/forbidden", Steps: []Step{list(cm, "").as(Stranger).header("Impersonate-User", "admin")}},
		{ID: "named/impersonate/viewer", Steps: []Step{list(secrets, "").header("Impersonate-User", "viewer").header("Impersonate-Group", "viewers")}},
		{ID: "named/impersonate/group-alone", Steps: []Step{list(cm, "").header("Impersonate-Group", "viewers")}},
	}
}
