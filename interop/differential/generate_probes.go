package differential

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"
)

// probeScripts are requests of unusual clients: spellings of paths, parameters and headers that a server must
// interpret.
func probeScripts() []Script {
	scripts := pathProbes()
	scripts = append(scripts, parameterProbes()...)
	scripts = append(scripts, headerProbes()...)
	scripts = append(scripts, lifeProbes()...)
	scripts = append(scripts, eventProbes()...)
	scripts = append(scripts, reviewProbes()...)
	return append(scripts, validityProbes()...)
}

// probe is a script of the family.
func probe(name string, steps ...Step) Script { return Script{ID: "probe/" + name, Steps: steps} }

// pathProbes are odd paths and methods, and the paths below /watch/.
func pathProbes() []Script {
	cm := configMaps
	made := create(cm, cm.make("a"))
	const inside = "/api/v1/namespaces/{ns}/"
	var scripts []Script
	for name, path := range sorted(map[string]string{
		"double-slash": inside + "configmaps//a", "double-slash-start": "/" + inside + "configmaps/a", "double-slash-kind": "/api/v1/namespaces/{ns}//configmaps",
		"encoded": inside + "configmaps/%61", "encoded-kind": "/api/v1/namespaces/{ns}/config%6daps/a", "encoded-slash": "/api/v1/namespaces/{ns}%2Fconfigmaps", "zero": inside + "configmaps/a%00", "not-ascii": inside + "configmaps/%C3%BC",
		"not-utf8": inside + "configmaps/%ff", "space": inside + "configmaps/a%20b", "plus": inside + "configmaps/a+b", "dot": inside + "configmaps/.", "dots-inside": inside + "configmaps/b/../a", "upper": inside + "configmaps/A",
		"kind-case": inside + "ConfigMaps", "kind-singular": inside + "configmap", "kind-short": inside + "cm", "prefix-case": "/API/v1/namespaces/{ns}/configmaps", "version-case": "/api/V1/namespaces/{ns}/configmaps", "core-as-group": "/apis/v1/namespaces/{ns}/configmaps", "core-group": "/apis/core/v1/namespaces/{ns}/configmaps",
		"no-version": "/api/namespaces/{ns}/configmaps", "namespace-only": "/api/v1/namespaces/{ns}/", "namespace-upper": "/api/v1/namespaces/UPPER/configmaps", "namespace-odd": "/api/v1/namespaces/a%20b/configmaps",
		"name-long": inside + "configmaps/" + strings.Repeat("n", 300), "cluster-in-namespace": inside + "nodes", "cluster-item-in-namespace": inside + "nodes/none", "namespaced-without": "/api/v1/configmaps/a", "question": inside + "configmaps/a%3Fb", "semicolon": inside + "configmaps/a;b",
		"status-upper": inside + "pods/a/Status", "status-slash": inside + "configmaps/a/status/", "list-below": inside + "configmaps/a/b/c", "trailing-twice": inside + "configmaps/a//",
		"apis-empty-group": "/apis//v1/configmaps", "apis-group-slash": "/apis/coordination.k8s.io/", "apis-version-slash": "/apis/coordination.k8s.io/v1/", "api-v1-slash": "/api/v1/", "openapi-slash": "/openapi/v3/apis/none", "healthz-slash": "/healthz/", "livez-deep": "/livez/ping/more", "version-deep": "/version/more", "metrics-slash": "/metrics/",
	}) {
		scripts = append(scripts, probe("path/"+name, made, getPath(path)))
	}
	for name, step := range sorted(map[string]Step{
		"post-slash": {Method: http.MethodPost, Path: cm.collection() + "/", ContentType: jsonType, Body: cm.make("b")}, "put-slash": {Method: http.MethodPut, Path: cm.item("a") + "/", ContentType: jsonType, Body: cm.make("a")}, "delete-slash": {Method: http.MethodDelete, Path: cm.item("a") + "/"},
		"get-lower": {Method: "get", Path: cm.item("a")}, "propfind": {Method: "PROPFIND", Path: cm.item("a")}, "trace-list": {Method: http.MethodTrace, Path: cm.collection()}, "options-list": {Method: http.MethodOptions, Path: cm.collection()}, "options-api": {Method: http.MethodOptions, Path: "/api"},
		"head-version": {Method: http.MethodHead, Path: "/version"}, "head-apis": {Method: http.MethodHead, Path: "/apis"}, "head-watch": {Method: http.MethodHead, Path: cm.collection(), Query: "watch=1&timeoutSeconds=1"}, "head-none": {Method: http.MethodHead, Path: cm.item("none")}, "head-unknown": {Method: http.MethodHead, Path: "/nope"},
		"patch-none": {Method: http.MethodPatch, Path: inside + "nones/a", ContentType: mergePatch, Body: "{}"}, "delete-none": {Method: http.MethodDelete, Path: "/nope"}, "delete-api": {Method: http.MethodDelete, Path: "/api/v1"}, "post-root": {Method: http.MethodPost, Path: "/"}, "root": {Method: http.MethodGet, Path: "/api", Query: "x=%zz"},
		"exec-get": {Method: http.MethodGet, Path: inside + "pods/none/exec", Query: "command=x"}, "exec-post": {Method: http.MethodPost, Path: inside + "pods/none/exec", Query: "command=x"}, "attach": {Method: http.MethodPost, Path: inside + "pods/none/attach"}, "portforward": {Method: http.MethodPost, Path: inside + "pods/none/portforward"},
		"log-missing": getPath(inside + "pods/none/log"), "pod-proxy": getPath(inside + "pods/none/proxy/x"), "service-proxy": getPath(inside + "services/none/proxy/x"), "ephemeral": getPath(inside + "pods/none/ephemeralcontainers"), "resize": getPath(inside + "pods/none/resize"), "node-proxy-deep": getPath("/api/v1/nodes/none/proxy/healthz"),
	}) {
		scripts = append(scripts, probe("method/"+name, made, step))
	}
	for name, path := range sorted(map[string]string{
		"list": "/api/v1/watch/namespaces/{ns}/configmaps", "item": "/api/v1/watch/namespaces/{ns}/configmaps/a", "none": "/api/v1/watch/namespaces/{ns}/configmaps/none", "unknown": "/api/v1/watch/namespaces/{ns}/nones", "nothing": "/api/v1/watch", "namespace": "/api/v1/watch/namespaces/{ns}",
		"off": "/api/v1/watch/namespaces/{ns}/configmaps?watch=0", "status": "/api/v1/watch/namespaces/{ns}/pods/a/status", "group": "/apis/coordination.k8s.io/v1/watch/namespaces/{ns}/leases",
		"bare": inside + "configmaps?watch", "true": inside + "configmaps?watch=True", "yes": inside + "configmaps?watch=yes", "zero": inside + "configmaps?watch=0", "case": inside + "configmaps?Watch=1", "twice": inside + "configmaps?watch=0&watch=1", "by-item": inside + "configmaps/a?watch=true", "by-item-none": inside + "configmaps/none?watch=true", "item-and-field": inside + "configmaps/a?watch=1&fieldSelector=metadata.name%3Db",
		"item-path-field": "/api/v1/watch/namespaces/{ns}/configmaps/a?fieldSelector=metadata.name%3Db", "item-path-label": "/api/v1/watch/namespaces/{ns}/configmaps/a?labelSelector=none",
	}) {
		step := getPath(path)
		separator := "&"
		if step.Query == "" {
			separator = ""
		}
		// Well within eventLimit: the end by the server is part of the response.
		step.Query += separator + "resourceVersion={rv:0}&timeoutSeconds=2"
		step.Watch = &Watch{Events: 2, During: []Step{create(cm, cm.make("c")), patch(cm, "a", mergePatch, cm.change), patch(cm, "b", mergePatch, cm.change)}}
		// Some of these are lists: one at an older version may lack what the cache has not received yet.
		scripts = append(scripts, probe("watch/"+name, made, create(cm, cm.make("b")), caughtUp(cm, 1), step))
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch} {
		scripts = append(scripts, probe("watch-method/"+method, Step{Method: method, Path: "/api/v1/watch/namespaces/{ns}/configmaps", ContentType: jsonType, Body: cm.make("a")}),
			probe("watch-method/item-"+method, made, Step{Method: method, Path: "/api/v1/watch/namespaces/{ns}/configmaps/a", ContentType: jsonType, Body: cm.make("a")}))
	}
	return scripts
}

// forged is a continue token that no server issued.
func forged(text string) string {
	return "continue=" + base64.RawURLEncoding.EncodeToString([]byte(text))
}

// parameterProbes are odd parameters of each verb.
func parameterProbes() []Script {
	cm := configMaps
	made := create(cm, cm.make("a"))
	var scripts []Script
	for name, query := range sorted(map[string]string{
		"case": "LIMIT=1&LabelSelector=x", "limit-twice-bad": "limit=1&limit=x", "limit-empty": "limit=", "limit-space": "limit=%201", "limit-plus": "limit=%2B1", "limit-fraction": "limit=1.5", "limit-huge": "limit=9223372036854775808", "limit-max": "limit=9223372036854775807", "limit-hex": "limit=0x1", "limit-under": "limit=1_0",
		"escape-bad": "limit=%zz", "escape-bad-other": "limit=1&x=%zz", "semicolon": "limit=1;x=2", "empty-name": "=1", "ampersands": "&&&limit=1&&", "no-value": "limit",
		"timeout-negative": "timeoutSeconds=-1", "timeout-zero": "timeoutSeconds=0", "timeout-huge": "timeoutSeconds=99999999999999999999", "timeout-duration-negative": "timeout=-1s", "timeout-duration-number": "timeout=5", "timeout-duration-huge": "timeout=1000h", "timeout-zero-duration": "timeout=0s", "timeout-empty": "timeout=",
		"rv-plus": "resourceVersion=%2B1", "rv-zeros": "resourceVersion=00", "rv-fraction": "resourceVersion=1.0", "rv-huge": "resourceVersion=18446744073709551616", "rv-space": "resourceVersion=%20", "rv-far": "resourceVersion=9223372036854775807&timeout=1s", "rv-twice": "resourceVersion=0&resourceVersion=x",
		"match-case": "resourceVersion=0&resourceVersionMatch=exact", "match-empty": "resourceVersion=0&resourceVersionMatch=", "match-exact-no-rv": "resourceVersion=&resourceVersionMatch=Exact", "match-not-older-limit": "limit=1&resourceVersionMatch=NotOlderThan", "match-continue": "continue=x&resourceVersionMatch=NotOlderThan",
		"bookmarks-bad": "allowWatchBookmarks=maybe", "initial-bad": "sendInitialEvents=maybe", "initial-false": "sendInitialEvents=false", "pretty-bad": "pretty=maybe", "watch-bad": "watch=maybe&timeoutSeconds=1", "unknown": "nonsense=1&more",
		"continue-empty": "continue=", "continue-shape": forged(`{"v":"meta.k8s.io/v1","rv":1,"start":"a\u0000"}`), "continue-version": forged(`{"v":"v9","rv":1,"start":"a"}`), "continue-rv-0": forged(`{"v":"meta.k8s.io/v1","rv":0,"start":"a\u0000"}`), "continue-rv-negative": forged(`{"v":"meta.k8s.io/v1","rv":-1,"start":"b"}`),
		"continue-no-start": forged(`{"v":"meta.k8s.io/v1","rv":1}`), "continue-up": forged(`{"v":"meta.k8s.io/v1","rv":-1,"start":"../../x"}`), "continue-absolute": forged(`{"v":"meta.k8s.io/v1","rv":-1,"start":"/x"}`), "continue-json": forged(`{}`), "continue-padded": "continue=e30%3D", "continue-text": forged(`x`),
		"label-set": "labelSelector=case+in+({id}),!x", "label-set-empty": "labelSelector=case+in+()", "label-set-blank": "labelSelector=x+in+(,)", "label-set-spaces": "labelSelector=+case+in+(+{id}+,+b+)+", "label-notin-missing": "labelSelector=nothere+notin+(a)", "label-comma": "labelSelector=,", "label-comma-end": "labelSelector=case,", "label-two": "labelSelector=case%3D%3D{id},case!%3Dx", "label-in-case": "labelSelector=case+IN+({id})",
		"label-key-in": "labelSelector=in", "label-key-notin": "labelSelector=notin+in+(in,notin)", "label-value-empty": "labelSelector=x%3D", "label-not-empty": "labelSelector=x!%3D", "label-not-exists-eq": "labelSelector=!x%3D1", "label-slash": "labelSelector=a%2Fb%2Fc%3D1", "label-prefix-upper": "labelSelector=A.b%2Fc%3D1", "label-long": "labelSelector=x%3D" + strings.Repeat("y", 64), "label-less": "labelSelector=x%3C5", "label-less-space": "labelSelector=x+%3C+5,x%3E1", "label-greater-negative": "labelSelector=x%3E-1", "label-parens": "labelSelector=(x)", "label-twice": "labelSelector=case&labelSelector=none", "label-exclaim": "labelSelector=!", "label-newline": "labelSelector=case%0A", "label-quote": "labelSelector=case%3D'a'",
		"field-double": "fieldSelector=metadata.name%3D%3Da", "field-not": "fieldSelector=metadata.name!%3Da", "field-two": "fieldSelector=metadata.name%3Da,metadata.name%3Db", "field-comma": "fieldSelector=,", "field-escape": "fieldSelector=metadata.name%3Da%5C,b", "field-escape-bad": "fieldSelector=metadata.name%3Da%5Cb", "field-escape-end": "fieldSelector=metadata.name%3Da%5C", "field-empty-value": "fieldSelector=metadata.name%3D", "field-empty-key": "fieldSelector=%3Da", "field-spaces": "fieldSelector=metadata.name%20%3D%20a", "field-in": "fieldSelector=metadata.name+in+(a)", "field-namespace-other": "fieldSelector=metadata.namespace%3Dother", "field-twice": "fieldSelector=metadata.name%3Da&fieldSelector=x%3D1", "field-uid": "fieldSelector=metadata.uid%3Dx", "field-label": "fieldSelector=metadata.labels.case%3Dx",
		"include-watch-none": "includeObject=none", "dry-run-on-get": "dryRun=Odd", "manager-on-get": "fieldManager=" + strings.Repeat("m", 200), "as-query": "as=jane", "shard": "shardSelector=x",
	}) {
		scripts = append(scripts, probe("list/"+name, made, caughtUp(cm, 0), list(cm, query)))
	}
	for name, query := range sorted(map[string]string{
		"timeout-negative": "timeoutSeconds=-1", "timeout-zero": "timeoutSeconds=0&resourceVersion=0", "rv-far": "resourceVersion=9223372036854775807&timeoutSeconds=1", "rv-huge": "resourceVersion=18446744073709551616", "match-case": "sendInitialEvents=true&resourceVersionMatch=notolderthan", "bookmarks-bad": "allowWatchBookmarks=maybe", "initial-bad": "sendInitialEvents=maybe",
		"initial-bookmarks-off": "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=false", "match-exact": "resourceVersion={rv:0}&resourceVersionMatch=Exact", "limit-bad": "limit=x", "field-two": "fieldSelector=metadata.name%3Da,metadata.name!%3Db&resourceVersion=0", "label-empty-set": "labelSelector=x+in+()", "pretty": "pretty=1&resourceVersion=0", "continue-limit": "limit=1&continue=x&resourceVersion=0", "escape-bad": "labelSelector=%zz&resourceVersion=0",
	}) {
		scripts = append(scripts, probe("watching/"+name, made, caughtUp(cm, 0), watch(cm, query, 1)))
	}
	long := strings.Repeat("m", 128)
	for name, query := range sorted(map[string]string{
		"manager-128": "fieldManager=" + long, "manager-129": "fieldManager=" + long + "m", "manager-runes": "fieldManager=" + url.QueryEscape(strings.Repeat("ü", 128)), "manager-empty": "fieldManager=", "manager-twice": "fieldManager=a&fieldManager=" + long + "m", "manager-space": "fieldManager=a%20b", "manager-not-utf8": "fieldManager=%ff",
		"dry-run-case": "dryRun=all", "dry-run-mixed": "dryRun=All&dryRun=Some", "dry-run-bare": "dryRun", "dryrun": "dryrun=All", "validation-case": "fieldValidation=strict", "validation-twice": "fieldValidation=Ignore&fieldValidation=Maybe", "validation-empty": "fieldValidation=", "force-on-merge": "force=true", "force-bad": "force=maybe", "grace": "gracePeriodSeconds=x", "owner": "uid=x&resourceVersion=1", "escape-bad": "dryRun=%zz",
	}) {
		scripts = append(scripts, probe("create/"+name, create(cm, cm.make("a")).query(query)), probe("put/"+name, made, put(cm, "a", cm.make("a", cm.change)).query(query)),
			probe("merge/"+name, made, patch(cm, "a", mergePatch, cm.change).query(query)), probe("apply/"+name, patch(cm, "a", applyPatch, cm.make("a")).query(query)))
	}
	for name, query := range sorted(map[string]string{
		"grace-negative": "gracePeriodSeconds=-1", "grace-empty": "gracePeriodSeconds=", "grace-huge": "gracePeriodSeconds=9223372036854775808", "grace-fraction": "gracePeriodSeconds=1.5", "policy-empty": "propagationPolicy=", "policy-case": "propagationPolicy=background", "policy-twice": "propagationPolicy=Background&propagationPolicy=Odd", "orphan-bad": "orphanDependents=maybe", "orphan-both": "orphanDependents=false&propagationPolicy=Background", "dry-twice": "dryRun=All&dryRun=All", "dry-empty": "dryRun=", "rv": "resourceVersion=1", "uid": "preconditions=x&uid=y", "precondition": "preconditions.uid=y", "ignore-bad": "ignoreStoreReadErrorWithClusterBreakingPotential=true", "escape-bad": "dryRun=%zz", "unknown": "nonsense=1",
	}) {
		scripts = append(scripts, probe("delete/"+name, made, remove(cm, "a", "").query(query)), probe("delete-pod/"+name, create(pods, pods.make("a", `{"spec":{"nodeName":"n"}}`)), remove(pods, "a", "").query(query)))
	}
	return scripts
}

// headerProbes are odd headers.
func headerProbes() []Script {
	cm := configMaps
	made := create(cm, cm.make("a"))
	const table = "application/json;as=Table;v=v1;g=meta.k8s.io"
	var scripts []Script
	for name, accept := range sorted(map[string]string{
		"upper": "Application/JSON", "q-zero": "application/json;q=0", "q-order": "application/json;q=0.1,application/yaml;q=0.9", "q-bad": "application/json;q=x", "q-equal": "application/yaml;q=0.5, application/json;q=0.5", "table-q": table + ";q=0.1,application/yaml", "table-any": table + ", */*", "table-last": "application/json," + table, "any-table": "*/*;as=Table;v=v1;g=meta.k8s.io", "any-json": "*/json", "app-star-q": "application/*;q=0.8,application/yaml",
		"table-no-version": "application/json;as=Table;g=meta.k8s.io", "table-no-group": "application/json;as=Table;v=v1", "table-case": "application/json;as=table;v=v1;g=meta.k8s.io", "table-order": "application/json;g=meta.k8s.io;v=v1;as=Table", "table-quoted": `application/json;as="Table";v="v1";g="meta.k8s.io"`, "table-spaces": "application/json; as=Table; v=v1; g=meta.k8s.io", "table-odd-then-json": "application/json;as=Odd;v=v1;g=meta.k8s.io,application/json", "table-v1alpha1": "application/json;as=Table;v=v1alpha1;g=meta.k8s.io",
		"partial-no-group": "application/json;as=PartialObjectMetadata;v=v1", "text": "text/plain", "text-star": "text/*", "html": "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8", "yaml-old": "application/x-yaml", "json-charset": "application/json;charset=latin1", "json-profile": "application/json;profile=x", "json-pretty": "application/json;pretty=1", "protobuf-stream": protobufType + ";stream=watch", "protobuf-table-json": protobufType + ";as=Table;v=v1;g=meta.k8s.io," + table, "comma": ",", "empty-part": ",,application/yaml", "spaces": "  application/yaml  ", "no-slash": "json", "semicolon": "application/json;", "many": strings.Repeat("application/odd,", 100) + "application/yaml", "vendor": "application/vnd.kubernetes+json", "apply": applyPatch,
	}) {
		scripts = append(scripts, probe("accept/"+name, made, get(cm, "a").accept(accept)), probe("accept-list/"+name, made, list(cm, "").accept(accept)), probe("accept-watch/"+name, made, watch(cm, "resourceVersion=0", 1).accept(accept)))
	}
	for name, contentType := range sorted(map[string]string{
		"upper": "Application/JSON", "charset-odd": "application/json;charset=latin1", "two": "application/json,application/yaml", "text-json": "text/json", "yaml-charset": "application/yaml; charset=utf-8", "yaml-old": "application/x-yaml", "text-yaml": "text/yaml", "table": table, "semicolon": "application/json;", "semicolon-bad": "application/json;x", "spaces": " application/json ", "star": "*/*", "form": "application/x-www-form-urlencoded", "stream": "application/json;stream=watch", "vendor": "application/vnd.api+json", "slash": "application/", "protobuf-param": protobufType + ";x=y",
	}) {
		scripts = append(scripts, probe("content/"+name, create(cm, cm.make("a")).content(contentType, Raw)), probe("content-put/"+name, made, put(cm, "a", cm.make("a", cm.change)).content(contentType, Raw)), probe("content-delete/"+name, made, remove(cm, "a", `{"gracePeriodSeconds":0}`).content(contentType, Raw)))
	}
	for name, contentType := range sorted(map[string]string{"upper": "Application/Merge-Patch+JSON", "charset": mergePatch + ";charset=latin1", "params": mergePatch + ";a=b", "apply-json": "application/apply-patch+json", "text": "text/plain", "json-patch-case": "application/JSON-patch+json", "semicolon": mergePatch + ";", "spaces": " " + mergePatch + " "}) {
		scripts = append(scripts, probe("content-patch/"+name, made, patch(cm, "a", contentType, cm.change)))
	}
	for name, header := range sorted(map[string][2]string{
		"basic": {"Authorization", "Basic YTpi"}, "bearer-empty": {"Authorization", "Bearer "}, "bearer-junk": {"Authorization", "Bearer x y"}, "remote-user": {"X-Remote-User", "jane"}, "range": {"Range", "bytes=0-1"}, "if-match": {"If-Match", `"x"`}, "if-none-match": {"If-None-Match", "*"}, "modified": {"If-Modified-Since", "Sat, 01 Jan 2050 00:00:00 GMT"},
		"override": {"X-Http-Method-Override", "DELETE"}, "gzip-q-zero": {"Accept-Encoding", "gzip;q=0"}, "brotli": {"Accept-Encoding", "br"}, "identity": {"Accept-Encoding", "identity"}, "origin": {"Origin", "https://example.com"}, "language": {"Accept-Language", "de"}, "forwarded": {"X-Forwarded-For", "1.2.3.4"},
		"as-service-account": {"Impersonate-User", "system:serviceaccount:default:x"}, "as-uid": {"Impersonate-Uid", "7"}, "as-extra": {"Impersonate-Extra-Scopes", "x"}, "as-empty": {"Impersonate-User", ""}, "as-anonymous": {"Impersonate-User", "system:anonymous"}, "as-node": {"Impersonate-User", "system:node:x"},
	}) {
		scripts = append(scripts, probe("header/"+name, made, get(cm, "a").header(header[0], header[1])))
	}
	gzipped := create(cm, cm.make("a")).header("Content-Encoding", "gzip")
	return append(scripts, probe("header/gzip-body", gzipped), probe("body/get", made, Step{Method: http.MethodGet, Path: cm.item("a"), Body: `{"x":1}`, ContentType: jsonType}), probe("body/list-xml", Step{Method: http.MethodGet, Path: cm.collection(), Body: `<a/>`, ContentType: "application/xml"}),
		probe("body/delete-text", made, remove(cm, "a", "x").content("text/plain", Raw)), probe("body/delete-protobuf-junk", made, remove(cm, "a", "junk").content(protobufType, Raw)), probe("body/delete-yaml-junk", made, remove(cm, "a", "a: [").content(yamlType, Raw)), probe("body/delete-null", made, remove(cm, "a", "null")), probe("body/delete-space", made, remove(cm, "a", " ")),
		probe("body/delete-duplicate", made, remove(cm, "a", `{"gracePeriodSeconds":0,"gracePeriodSeconds":1}`)), probe("body/delete-strict", made, remove(cm, "a", `{"unknown":1}`).query("fieldValidation=Strict")), probe("body/delete-pretty", made, remove(cm, "a", `{"preconditions":{"uid":"x"}}`).query("pretty=1")), probe("body/delete-preconditions-both", made, remove(cm, "a", `{"preconditions":{"uid":"{uid:0}","resourceVersion":"1"}}`)), probe("body/delete-precondition-missing", remove(cm, "a", `{"preconditions":{"uid":"x"}}`)), probe("body/delete-configmap", made, remove(cm, "a", cm.make("a"))),
		probe("body/delete-collection-options", made, Step{Method: http.MethodDelete, Path: cm.collection(), ContentType: jsonType, Body: `{"preconditions":{"uid":"x"}}`}), probe("body/delete-collection-dry", made, Step{Method: http.MethodDelete, Path: cm.collection(), ContentType: jsonType, Body: `{"dryRun":["All"]}`}.compared(), list(cm, "")),
		probe("body/bom", create(cm, "\ufeff"+cm.make("a"))), probe("body/not-utf8", create(cm, `{"metadata":{"name":"a"},"data":{"a":"`+"\xff"+`"}}`)), probe("body/escapes", create(cm, `{"metadata":{"name":"a"},"data":{"a":"\ud800 \u0000 \u2028"}}`)), probe("body/numbers", create(cm, `{"metadata":{"name":"a","generation":1.0},"immutable":0}`)), probe("body/exponent", create(leases, leases.make("a")), patch(leases, "a", mergePatch, `{"spec":{"leaseDurationSeconds":1e1}}`)), probe("body/list", create(cm, `{"apiVersion":"v1","kind":"List","items":[]}`)), probe("body/kind-list", create(cm, `{"apiVersion":"v1","kind":"ConfigMapList","items":[]}`)), probe("body/yaml-documents", create(cm, "metadata:\n  name: a\n---\nmetadata:\n  name: b\n").content(yamlType, Raw)), probe("body/yaml-anchor", create(cm, "metadata: {name: a}\ndata: {a: &x y, b: *x}\n").content(yamlType, Raw)), probe("body/yaml-bool", create(cm, "metadata: {name: a}\ndata: {a: yes}\n").content(yamlType, Raw)), probe("body/yaml-merge", create(cm, "metadata: {name: a}\nx: &x {a: b}\ndata: {<<: *x}\n").content(yamlType, Raw)), probe("body/yaml-number-key", create(cm, "metadata: {name: a}\ndata: {1: \"b\"}\n").content(yamlType, Raw)), probe("body/yaml-duplicate", create(cm, "metadata: {name: a}\ndata: {a: b, a: c}\n").content(yamlType, Raw)), probe("body/yaml-tab", create(cm, "metadata:\n\tname: a\n").content(yamlType, Raw)), probe("body/yaml-date", create(cm, "metadata: {name: a}\ndata: {a: 2026-01-01}\n").content(yamlType, Raw)), probe("body/yaml-octal", create(leases, "metadata: {name: a}\nspec: {leaseDurationSeconds: 010}\n").content(yamlType, Raw)))
}

// lifeProbes are deletions, finalizers and terminating namespaces.
func lifeProbes() []Script {
	cm := configMaps
	bound := func(patches ...string) Step {
		return create(pods, pods.make("a", append(patches, `{"spec":{"nodeName":"n"}}`)...))
	}
	stuck := Step{Method: http.MethodPost, Path: "/api/v1/namespaces/{id}-a/configmaps", ContentType: jsonType, Body: `{"metadata":{"name":"stuck","finalizers":["example.com/a"]}}`}
	made := create(namespaces, namespaces.make("a"))
	base := []Step{made, stuck, remove(namespaces, "a", "")}
	var scripts []Script
	for name, step := range sorted(map[string]Step{
		"create": {Method: http.MethodPost, Path: "/api/v1/namespaces/{id}-a/configmaps", ContentType: jsonType, Body: `{"metadata":{"name":"x"}}`}, "generate": {Method: http.MethodPost, Path: "/api/v1/namespaces/{id}-a/configmaps", ContentType: jsonType, Body: `{"metadata":{"generateName":"x-"}}`}, "dry-run": {Method: http.MethodPost, Path: "/api/v1/namespaces/{id}-a/configmaps", Query: "dryRun=All", ContentType: jsonType, Body: `{"metadata":{"name":"x"}}`},
		"event": {Method: http.MethodPost, Path: "/api/v1/namespaces/{id}-a/events", ContentType: jsonType, Body: `{"metadata":{"name":"x"},"involvedObject":{"namespace":"{id}-a"}}`}, "lease-put": {Method: http.MethodPut, Path: "/apis/coordination.k8s.io/v1/namespaces/{id}-a/leases/x", ContentType: jsonType, Body: `{"metadata":{"name":"x"}}`}, "apply": {Method: http.MethodPatch, Path: "/api/v1/namespaces/{id}-a/configmaps/x", Query: "fieldManager=m", ContentType: applyPatch, Body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}`},
		"patch": {Method: http.MethodPatch, Path: "/api/v1/namespaces/{id}-a/configmaps/stuck", ContentType: mergePatch, Body: `{"data":{"x":"y"}}`}, "put": {Method: http.MethodPut, Path: "/api/v1/namespaces/{id}-a/configmaps/stuck", ContentType: jsonType, Body: `{"metadata":{"name":"stuck","finalizers":["example.com/a"]},"data":{"x":"y"}}`}, "exists": stuck, "local-review": {Method: http.MethodPost, Path: "/apis/authorization.k8s.io/v1/namespaces/{id}-a/localsubjectaccessreviews", ContentType: jsonType, Body: `{"spec":{"user":"x","resourceAttributes":{"namespace":"{id}-a","verb":"get","resource":"pods"}}}`},
		"invalid": {Method: http.MethodPost, Path: "/api/v1/namespaces/{id}-a/configmaps", ContentType: jsonType, Body: `{"metadata":{"name":"X_"}}`}, "again": create(namespaces, namespaces.make("a")), "label": patch(namespaces, "a", mergePatch, `{"metadata":{"labels":{"x":"y"}}}`), "event-v1": {Method: http.MethodPost, Path: "/apis/events.k8s.io/v1/namespaces/{id}-a/events", ContentType: jsonType, Body: strings.ReplaceAll(eventsV1.make("x"), "{ns}", "{id}-a")},
	}) {
		scripts = append(scripts, probe("terminating/"+name, append(base[:3:3], step)...))
	}
	finalizer := metaVariants["finalizer"]
	return append(scripts,
		probe("life/pod-finalizer", bound(finalizer), remove(pods, "a", "").compared(), remove(pods, "a", `{"gracePeriodSeconds":0}`).compared(), get(pods, "a").compared(), patch(pods, "a", mergePatch, `{"metadata":{"finalizers":null}}`).compared(), get(pods, "a")),
		probe("life/pod-finalizer-graceful", bound(finalizer), remove(pods, "a", "").compared(), patch(pods, "a", mergePatch, `{"metadata":{"finalizers":null}}`).compared(), get(pods, "a")),
		probe("life/pod-grace-longer", bound(), remove(pods, "a", `{"gracePeriodSeconds":2}`).compared(), remove(pods, "a", `{"gracePeriodSeconds":60}`).compared(), remove(pods, "a", "")),
		probe("life/pod-grace-preconditions", bound(), remove(pods, "a", `{"preconditions":{"resourceVersion":"1"}}`).compared(), remove(pods, "a", `{"preconditions":{"uid":"{uid:0}","resourceVersion":"{rv:0}"}}`).compared(), remove(pods, "a", `{"gracePeriodSeconds":0,"preconditions":{"resourceVersion":"{rv:0}"}}`)),
		probe("life/pod-grace-dry", bound(), remove(pods, "a", "").query("dryRun=All").compared(), get(pods, "a")),
		probe("life/pod-zero-by-spec", bound(`{"spec":{"terminationGracePeriodSeconds":0}}`), remove(pods, "a", "").compared(), get(pods, "a")),
		probe("life/pod-status-after-delete", bound(), remove(pods, "a", ""), patch(pods, "a", mergePatch, `{"status":{"phase":"Failed"}}`).sub("status").compared(), remove(pods, "a", "").compared(), get(pods, "a")),
		probe("life/pod-deletion-changed", bound(), remove(pods, "a", ""), patch(pods, "a", mergePatch, `{"metadata":{"deletionTimestamp":null,"deletionGracePeriodSeconds":1}}`).compared(), get(pods, "a")),
		probe("life/pod-collection", bound(), Step{Method: http.MethodDelete, Path: pods.collection(), ContentType: jsonType, Body: `{"gracePeriodSeconds":3}`}.compared(), get(pods, "a")),
		probe("life/deletion-invented", create(cm, cm.make("a")), put(cm, "a", cm.make("a", `{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z","deletionGracePeriodSeconds":3}}`)).compared(), get(cm, "a")),
		probe("life/finalizer-added-after", create(cm, cm.make("a", finalizer)), remove(cm, "a", ""), patch(cm, "a", mergePatch, `{"metadata":{"finalizers":["example.com/a","example.com/new"]}}`).compared(), patch(cm, "a", mergePatch, `{"metadata":{"finalizers":["example.com/other"]}}`)),
		probe("life/finalizer-swapped", create(cm, cm.make("a", `{"metadata":{"finalizers":["example.com/a","example.com/b"]}}`)), remove(cm, "a", ""), patch(cm, "a", jsonPatch, `[{"op":"remove","path":"/metadata/finalizers/0"}]`).compared(), patch(cm, "a", mergePatch, `{"metadata":{"finalizers":["example.com/b","example.com/b"]}}`)),
		probe("life/finalizer-twice", create(cm, cm.make("a", `{"metadata":{"finalizers":["example.com/a","example.com/a"]}}`))),
		probe("life/foreground-by-hand", create(cm, cm.make("a", `{"metadata":{"finalizers":["foregroundDeletion"]}}`)), remove(cm, "a", "").compared(), get(cm, "a")),
		probe("life/orphan-by-hand", create(cm, cm.make("a", `{"metadata":{"finalizers":["orphan"]}}`)), remove(cm, "a", "").compared(), get(cm, "a")),
		probe("life/owner-block", create(cm, cm.make("a", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"n","uid":"u1","controller":true,"blockOwnerDeletion":true}]}}`)), patch(cm, "a", mergePatch, `{"metadata":{"ownerReferences":[]}}`)),
		probe("life/owner-api-version", create(cm, cm.make("a", `{"metadata":{"ownerReferences":[{"apiVersion":"a/b/c","kind":"ConfigMap","name":"n","uid":"u1"}]}}`))),
		probe("life/owner-strategic", create(cm, cm.make("a", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"n","uid":"u1"}]}}`)), patch(cm, "a", strategicPatch, `{"metadata":{"ownerReferences":[{"uid":"u1","$patch":"delete"}]}}`)),
		probe("life/generate-exists", create(cm, cm.make("a", `{"metadata":{"generateName":"x-"}}`)), create(cm, cm.make("a", `{"metadata":{"generateName":"x-"}}`))),
		probe("life/generate-dry", create(cm, cm.make("a", metaVariants["generate-name"])).query("dryRun=All")),
		probe("life/generate-put", put(leases, "a", leases.make("a", `{"metadata":{"generateName":"x-"}}`))),
		probe("life/put-creates-dry", put(leases, "a", leases.make("a")).query("dryRun=All").compared(), get(leases, "a")),
		probe("life/put-creates-uid", put(leases, "a", leases.make("a", `{"metadata":{"uid":"5f4c2a8e-0000-4000-8000-000000000000"}}`))),
		probe("life/put-creates-rv", put(leases, "a", leases.make("a", `{"metadata":{"resourceVersion":"0"}}`))),
		probe("life/put-creates-invalid", put(leases, "a", leases.make("a", `{"spec":{"leaseDurationSeconds":0}}`))),
		probe("life/put-creates-namespace", Step{Method: http.MethodPut, Path: strings.Replace(leases.item("a"), "{ns}", "{id}-none", 1), ContentType: jsonType, Body: strings.ReplaceAll(leases.make("a"), "{ns}", "{id}-none")}),
		probe("life/put-event-creates", put(events, "a", events.make("a"))),
		probe("life/put-endpoints-creates", put(endpoints, "a", endpoints.make("a"))),
		probe("life/namespace-dry", made, remove(namespaces, "a", "").query("dryRun=All").compared(), get(namespaces, "a")),
		probe("life/namespace-preconditions", made, remove(namespaces, "a", `{"preconditions":{"uid":"5f4c2a8e-0000-4000-8000-000000000000"}}`)),
		probe("life/namespace-collection", Step{Method: http.MethodDelete, Path: "/api/v1/namespaces", Query: "labelSelector=none%3Dsuch"}),
		probe("life/namespace-long", create(namespaces, strings.Replace(namespaces.make("a"), "{id}-a", strings.Repeat("n", 64), 1))),
		probe("life/namespace-default", remove(namespaces, "a", "").sub("x"), Step{Method: http.MethodDelete, Path: "/api/v1/namespaces/default"}),
		probe("life/namespace-system", Step{Method: http.MethodDelete, Path: "/api/v1/namespaces/kube-system"}))
}

// eventProbes read an event through its other version.
func eventProbes() []Script {
	core := create(events, events.make("a", `{"series":{"count":3,"lastObservedTime":"2026-01-02T03:04:05.000000Z"},"related":{"kind":"Node","name":"n"},"source":{"host":"h"}}`))
	v1 := create(eventsV1, eventsV1.make("a", `{"series":{"count":3,"lastObservedTime":"2026-01-02T03:04:05.000000Z"},"related":{"kind":"Node","name":"n"}}`))
	var scripts []Script
	for _, name := range []string{"table", "protobuf", "yaml", "partial", "client-go"} {
		scripts = append(scripts, probe("event/core-as-v1/"+name, core, get(eventsV1, "a").accept(accepts[name])), probe("event/v1-as-core/"+name, v1, get(events, "a").accept(accepts[name])), probe("event/list/"+name, core, list(eventsV1, "").accept(accepts[name])), probe("event/watch/"+name, v1, watch(events, "resourceVersion=0", 1).accept(accepts[name])))
	}
	return append(scripts,
		probe("event/put-across", v1, put(events, "a", events.make("a"))), probe("event/put-across-back", core, put(eventsV1, "a", eventsV1.make("a"))),
		probe("event/strategic-across", v1, patch(events, "a", strategicPatch, `{"count":4,"message":"m"}`)), probe("event/json-across", core, patch(eventsV1, "a", jsonPatch, `[{"op":"replace","path":"/note","value":"m"}]`)), probe("event/series-v1", v1, patch(eventsV1, "a", strategicPatch, `{"series":{"count":5,"lastObservedTime":"2026-01-02T03:05:05.000000Z"}}`)),
		probe("event/delete-across", core, remove(eventsV1, "a", "").compared(), get(events, "a")), probe("event/field-type", core, list(eventsV1, "fieldSelector=type%3DNormal,reason%3DStarted")), probe("event/field-report", v1, list(events, "fieldSelector=reportingComponent%3Dexample.com/c")), probe("event/collection-v1", core, Step{Method: http.MethodDelete, Path: eventsV1.collection(), Query: "fieldSelector=regarding.kind%3DPod"}.compared(), list(events, "")),
		probe("event/no-name", create(events, events.make("a", `{"metadata":{"name":null}}`))), probe("event/bare", create(events, `{"metadata":{"name":"a"}}`)), probe("event/bare-v1", create(eventsV1, `{"metadata":{"name":"a"}}`)), probe("event/wrong-kind-v1", create(eventsV1, `{"apiVersion":"v1","kind":"Event","metadata":{"name":"a"}}`)), probe("event/default-namespace", Step{Method: http.MethodPost, Path: "/api/v1/namespaces/{ns}/events", ContentType: jsonType, Body: `{"metadata":{"name":"a"},"involvedObject":{"kind":"Node","name":"n"}}`}),
	)
}

// reviewProbes are odd reviews.
func reviewProbes() []Script {
	const authz, authn = "/apis/authorization.k8s.io/v1/", "/apis/authentication.k8s.io/v1/"
	post := func(path, body string) Step {
		return Step{Method: http.MethodPost, Path: path, ContentType: jsonType, Body: body}
	}
	var scripts []Script
	for name, spec := range sorted(map[string]string{
		"extra": `{"user":"viewer","uid":"1","extra":{"a":["b"]},"groups":["viewers"],"resourceAttributes":{"verb":"list","resource":"pods"}}`, "groups-alone": `{"groups":["viewers"],"resourceAttributes":{"verb":"list","resource":"pods"}}`, "star": `{"user":"viewer","groups":["viewers"],"resourceAttributes":{"verb":"*","resource":"*"}}`, "subresource": `{"user":"viewer","groups":["viewers"],"resourceAttributes":{"verb":"get","resource":"pods","subresource":"log"}}`, "slash": `{"user":"viewer","groups":["viewers"],"resourceAttributes":{"verb":"get","resource":"pods/log"}}`, "version": `{"user":"viewer","groups":["viewers"],"resourceAttributes":{"verb":"list","resource":"pods","version":"v9","group":""}}`, "no-verb": `{"user":"viewer","resourceAttributes":{"resource":"pods"}}`,
		"label-raw": `{"user":"viewer","resourceAttributes":{"verb":"list","resource":"pods","labelSelector":{"rawSelector":"a=b"}}}`, "label-raw-bad": `{"user":"viewer","resourceAttributes":{"verb":"list","resource":"pods","labelSelector":{"rawSelector":"a b"}}}`, "label-both": `{"user":"viewer","resourceAttributes":{"verb":"list","resource":"pods","labelSelector":{"rawSelector":"a=b","requirements":[{"key":"a","operator":"Exists"}]}}}`, "label-neither": `{"user":"viewer","resourceAttributes":{"verb":"list","resource":"pods","labelSelector":{}}}`, "label-operator": `{"user":"viewer","resourceAttributes":{"verb":"list","resource":"pods","labelSelector":{"requirements":[{"key":"a","operator":"Odd"}]}}}`, "field-operator": `{"user":"viewer","resourceAttributes":{"verb":"list","resource":"pods","fieldSelector":{"requirements":[{"key":"a","operator":"Exists"}]}}}`, "field-none": `{"user":"viewer","resourceAttributes":{"verb":"list","resource":"pods","fieldSelector":{"requirements":[{"key":"a","operator":"In"}]}}}`, "field-no-key": `{"user":"viewer","resourceAttributes":{"verb":"list","resource":"pods","fieldSelector":{"requirements":[{"operator":"In","values":["x"]}]}}}`, "field-raw": `{"user":"viewer","resourceAttributes":{"verb":"list","resource":"pods","fieldSelector":{"rawSelector":"a=b"}}}`,
		"path": `{"user":"viewer","groups":["viewers"],"nonResourceAttributes":{"verb":"get","path":"/healthz"}}`, "path-none": `{"user":"viewer","nonResourceAttributes":{}}`, "masters": `{"user":"x","groups":["system:masters"],"resourceAttributes":{"verb":"bite","resource":"dogs","group":"x"}}`, "unknown": `{"user":"x","nonsense":1,"nonResourceAttributes":{"path":"/"}}`, "wrong": `{"user":1}`,
	}) {
		scripts = append(scripts, probe("review/"+name, post(authz+"subjectaccessreviews", `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":`+spec+`}`)))
	}
	return append(scripts,
		probe("review/no-type", post(authz+"selfsubjectaccessreviews", `{"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}`)), probe("review/status-given", post(authz+"selfsubjectaccessreviews", `{"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}},"status":{"allowed":false,"reason":"x"}}`)), probe("review/labels", post(authz+"selfsubjectaccessreviews", `{"metadata":{"labels":{"a":"b"}},"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}`)), probe("review/generate-name", post(authz+"selfsubjectaccessreviews", `{"metadata":{"generateName":"a-"},"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}`)), probe("review/namespaced", post(authz+"namespaces/{ns}/selfsubjectaccessreviews", `{"spec":{}}`)),
		probe("review/local-path", post(authz+"namespaces/{ns}/localsubjectaccessreviews", `{"spec":{"user":"x","nonResourceAttributes":{"verb":"get","path":"/"}}}`)), probe("review/local-no-namespace", post(authz+"namespaces/{ns}/localsubjectaccessreviews", `{"spec":{"user":"x","resourceAttributes":{"verb":"get","resource":"pods"}}}`)), probe("review/local-meta", post(authz+"namespaces/{ns}/localsubjectaccessreviews", `{"metadata":{"namespace":"other"},"spec":{"user":"x","resourceAttributes":{"verb":"get","resource":"pods","namespace":"{ns}"}}}`)), probe("review/local-nowhere", post(authz+"localsubjectaccessreviews", `{"spec":{"user":"x","resourceAttributes":{"verb":"get","resource":"pods"}}}`)), probe("review/local-no-such", post(authz+"namespaces/{id}-none/localsubjectaccessreviews", `{"spec":{"user":"x","resourceAttributes":{"verb":"get","resource":"pods","namespace":"{id}-none"}}}`)),
		probe("review/token-audiences", post(authn+"tokenreviews", `{"spec":{"token":"junk","audiences":["x"]}}`)), probe("review/token-jwt", post(authn+"tokenreviews", `{"spec":{"token":"e30.e30.e30"}}`)), probe("review/token-name", post(authn+"tokenreviews", `{"metadata":{"name":"x"},"spec":{"token":"junk"}}`)), probe("review/token-wrong", post(authn+"tokenreviews", `{"spec":{"token":1}}`)), probe("review/whoami-as", post(authn+"selfsubjectreviews", `{}`).header("Impersonate-User", "jane").header("Impersonate-Group", "devs").header("Impersonate-Extra-Reason", "x")), probe("review/whoami-dry", post(authn+"selfsubjectreviews", `{}`).query("dryRun=All")), probe("review/whoami-named", post(authn+"selfsubjectreviews", `{"metadata":{"name":"x"}}`)), probe("review/rules-body", post(authz+"selfsubjectrulesreviews", `{"spec":{"namespace":"x"}}`).as(Viewer)),
		probe("review/token-request-short", create(serviceAccounts, serviceAccounts.make("a")), post(serviceAccounts.item("a")+"/token", `{"spec":{"expirationSeconds":5}}`)), probe("review/token-request-long", create(serviceAccounts, serviceAccounts.make("a")), post(serviceAccounts.item("a")+"/token", `{"spec":{"expirationSeconds":5000000000}}`)), probe("review/token-request-bound", create(serviceAccounts, serviceAccounts.make("a")), post(serviceAccounts.item("a")+"/token", `{"spec":{"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"none"}}}`)), probe("review/token-request-missing", post(serviceAccounts.item("a")+"/token", `{"spec":{}}`)), probe("review/token-request-name", create(serviceAccounts, serviceAccounts.make("a")), post(serviceAccounts.item("a")+"/token", `{"metadata":{"name":"other"},"spec":{}}`)), probe("review/token-request-get", create(serviceAccounts, serviceAccounts.make("a")), get(serviceAccounts, "a").sub("token")))
}
