package differential

import (
	"net/http"
	"strings"
)

func readScripts(k *kind) []Script {
	made := create(k, k.make("a"))
	scripts := []Script{
		script("get", k, "plain", made, get(k, "a")),
		script("get", k, "missing", get(k, "a")),
		script("get", k, "everywhere", Step{Method: http.MethodGet, Path: k.everywhere() + "/{id}"}),
		script("get", k, "trailing-slash", made, Step{Method: http.MethodGet, Path: k.item("a") + "/"}),
		script("get", k, "subresource-odd", made, get(k, "a").sub("odd")),
		script("get", k, "subresource-deep", made, get(k, "a").sub("odd/more")),
		script("get", k, "subresource-scale", made, get(k, "a").sub("scale")),
		script("get", k, "head", made, Step{Method: http.MethodHead, Path: k.item("a")}),
		script("get", k, "options", made, Step{Method: http.MethodOptions, Path: k.item("a")}),
		script("get", k, "trace", made, Step{Method: "BREW", Path: k.item("a")}),
		script("get", k, "curl", made, get(k, "a").header("User-Agent", "curl/8.0")),
		script("get", k, "gzip-small", made, get(k, "a").header("Accept-Encoding", "gzip")),
	}
	if !k.clusterScoped {
		scripts = append(scripts, script("get", k, "namespace-missing", Step{Method: http.MethodGet, Path: strings.Replace(k.item("a"), "{ns}", "{id}-none", 1)}))
	}
	for name, query := range sorted(map[string]string{
		"rv-0": "resourceVersion=0", "rv-current": "resourceVersion={rv:0}", "rv-junk": "resourceVersion=x", "rv-negative": "resourceVersion=-1",
		"watch": "watch=1", "pretty": "pretty=1", "pretty-off": "pretty=0", "timeout-bad": "timeout=x", "timeout": "timeout=3s", "limit-bad": "limit=x",
	}) {
		scripts = append(scripts, script("get", k, "option/"+name, made, caughtUp(k, 0), get(k, "a").query(query)))
	}
	for _, name := range acceptsFor(k) {
		scripts = append(scripts, script("get", k, "accept/"+name, made, get(k, "a").accept(accepts[name])),
			script("get", k, "accept-missing/"+name, get(k, "a").accept(accepts[name])))
	}
	for name, query := range sorted(map[string]string{"none": "includeObject=None", "object": "includeObject=Object", "metadata": "includeObject=Metadata", "bad": "includeObject=Odd"}) {
		scripts = append(scripts, script("get", k, "include-object/"+name, made, get(k, "a").accept(accepts["table"]).query(query)))
	}
	return scripts
}

// listQueries are the parameters of lists and watches that need no special state: three objects a, b, c exist, b with the
// label colour=red, and step 2 is the last create.
var listQueries = map[string]string{
	"rv-0":               "resourceVersion=0",
	"rv-at-least":        "resourceVersion={rv:2}",
	"rv-not-older":       "resourceVersion={rv:2}&resourceVersionMatch=NotOlderThan",
	"rv-exact":           "resourceVersion={rv:1}&resourceVersionMatch=Exact",
	"rv-exact-0":         "resourceVersion=0&resourceVersionMatch=Exact",
	"rv-junk":            "resourceVersion=x",
	"rv-old":             "resourceVersion=1&resourceVersionMatch=Exact",
	"match-alone":        "resourceVersionMatch=Exact",
	"match-odd":          "resourceVersion={rv:2}&resourceVersionMatch=Odd",
	"limit":              "limit=2",
	"limit-1":            "limit=1",
	"limit-exactly":      "limit=3",
	"limit-0":            "limit=0",
	"limit-negative":     "limit=-1",
	"limit-bad":          "limit=two",
	"limit-rv-0":         "limit=1&resourceVersion=0",
	"limit-rv":           "limit=1&resourceVersion={rv:1}",
	"limit-rv-exact":     "limit=1&resourceVersion={rv:1}&resourceVersionMatch=Exact",
	"limit-rv-not-older": "limit=1&resourceVersion={rv:1}&resourceVersionMatch=NotOlderThan",
	"limit-selector":     "limit=1&labelSelector=case%3D{id}",
	"continue-junk":      "continue=junk",
	"continue-match":     "continue=junk&resourceVersionMatch=Exact&resourceVersion={rv:0}",
	"initial-list":       "sendInitialEvents=true",
	"initial-list-match": "sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
	"bookmarks":          "allowWatchBookmarks=true",
	"timeout-seconds":    "timeoutSeconds=x",
	"timeout":            "timeout=10s",
	"pretty":             "pretty=true",
	"watch-false":        "watch=false",
	"label":              "labelSelector=colour%3Dred",
	"label-not":          "labelSelector=colour%21%3Dred%2Ccase%3D{id}",
	"label-exists":       "labelSelector=colour",
	"label-absent":       "labelSelector=%21colour,case%3D{id}",
	"label-in":           "labelSelector=colour+in+(red,blue)",
	"label-not-in":       "labelSelector=colour+notin+(red,blue),case%3D{id}",
	"label-greater":      "labelSelector=size%3E1",
	"label-bad":          "labelSelector=a+b",
	"label-bad-op":       "labelSelector=a%3D%3D%3Db",
	"label-bad-value":    "labelSelector=a%3D-x-",
	"label-bad-in":       "labelSelector=a+in+(x",
	"label-bad-greater":  "labelSelector=a%3Ex",
	"label-empty":        "labelSelector=",
	"field-name":         "fieldSelector=metadata.name%3Da",
	"field-bad":          "fieldSelector=metadata.name",
	"field-unknown":      "fieldSelector=spec.nonsense%3D1",
	"field-empty":        "fieldSelector=",
	"field-namespace":    "fieldSelector=metadata.namespace%3D{ns}",
	"twice":              "limit=1&limit=2",
	"include-none":       "includeObject=None",
}

// threeObjects are the steps every list script begins with.
func threeObjects(k *kind) []Step {
	return []Step{create(k, k.make("a")), create(k, k.make("b", `{"metadata":{"labels":{"colour":"red","size":"3"}}}`)), create(k, k.make("c"))}
}

func listScripts(k *kind) []Script {
	three := threeObjects(k)
	scripts := []Script{
		script("list", k, "plain", append(three[:3:3], list(k, ""))...),
		script("list", k, "empty", list(k, "")),
		script("list", k, "head", Step{Method: http.MethodHead, Path: k.collection()}),
		script("list", k, "trailing-slash", list(k, ""), Step{Method: http.MethodGet, Path: k.collection() + "/", Query: "labelSelector=case%3D{id}"}),
		script("list", k, "everywhere", append(three[:3:3], Step{Method: http.MethodGet, Path: k.everywhere(), Query: "labelSelector=case%3D{id}"})...),
		script("list", k, "everywhere-namespace-field", append(three[:3:3], Step{Method: http.MethodGet, Path: k.everywhere(), Query: "fieldSelector=metadata.namespace%3D{ns}&labelSelector=case%3D{id}"})...),
		script("list", k, "two-pages", append(three[:3:3], list(k, "limit=2").compared(), list(k, "limit=2&continue={continue:3}"))...),
		script("list", k, "pages-of-one", append(three[:3:3], list(k, "limit=1"), list(k, "limit=1&continue={continue:3}").compared(), list(k, "limit=1&continue={continue:4}"))...),
		script("list", k, "pages-consistent", append(three[:3:3], list(k, "limit=1"), remove(k, "b", `{"gracePeriodSeconds":0}`), create(k, k.make("d")), list(k, "continue={continue:3}"))...),
		script("list", k, "continue-rv", append(three[:3:3], list(k, "limit=1"), list(k, "limit=1&continue={continue:3}&resourceVersion={rv:0}"))...),
		script("list", k, "continue-rv-0", append(three[:3:3], list(k, "limit=1"), list(k, "limit=1&continue={continue:3}&resourceVersion=0"))...),
		script("list", k, "selected-pages", append(three[:3:3], list(k, "limit=1&labelSelector=case%3D{id}").compared(), list(k, "limit=2&continue={continue:3}&labelSelector=case%3D{id}"))...),
		script("list", k, "exact-after-delete", append(three[:3:3], remove(k, "b", `{"gracePeriodSeconds":0}`), list(k, "resourceVersion={rv:2}&resourceVersionMatch=Exact"))...),
		script("list", k, "table-paged", append(three[:3:3], list(k, "limit=2").accept(accepts["table"]).compared(), list(k, "limit=2&continue={continue:3}").accept(accepts["table"]))...),
	}
	for name, query := range sorted(listQueries) {
		if k.clusterScoped && strings.HasSuffix(query, "Selector=") {
			continue // an empty one would list objects of other scripts
		}
		scripts = append(scripts, script("list", k, "option/"+name, append(three[:3:3], caughtUp(k, 2), list(k, query))...))
	}
	for _, field := range k.fields {
		scripts = append(scripts, script("list", k, "field/"+field, append(three[:3:3], list(k, "fieldSelector="+escapeSelector(field)+"&labelSelector=case%3D{id}"))...))
	}
	for _, name := range acceptsFor(k) {
		scripts = append(scripts, script("list", k, "accept/"+name, append(three[:3:3], list(k, "").accept(accepts[name]))...),
			script("list", k, "accept-empty/"+name, list(k, "").accept(accepts[name])))
	}
	for _, include := range []string{"None", "Object", "Odd"} {
		scripts = append(scripts, script("list", k, "include-object/"+include, append(three[:3:3], list(k, "includeObject="+include).accept(accepts["table"]))...))
	}
	return scripts
}

func escapeSelector(s string) string {
	return strings.NewReplacer("=", "%3D", "!", "%21", ",", "%2C").Replace(s)
}

// watchQueries are starts of a watch while objects a, b and c exist. The number is the count of initial events.
var watchQueries = map[string]struct {
	query  string
	before int
}{
	"rv-unset":             {"", 3},
	"rv-0":                 {"resourceVersion=0", 3},
	"rv-last":              {"resourceVersion={rv:2}", 0},
	"rv-first":             {"resourceVersion={rv:0}", 2},
	"rv-old":               {"resourceVersion=1", 1},
	"rv-junk":              {"resourceVersion=x", 0},
	"bookmarks":            {"allowWatchBookmarks=true", 4},
	"bookmarks-rv":         {"allowWatchBookmarks=true&resourceVersion={rv:2}", 0},
	"initial":              {"sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", 4},
	"initial-0":            {"sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=0", 4},
	"initial-rv":           {"sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion={rv:2}", 4},
	"initial-no-bookmarks": {"sendInitialEvents=true&resourceVersionMatch=NotOlderThan", 3},
	"initial-no-match":     {"sendInitialEvents=true", 0},
	"initial-exact":        {"sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion={rv:2}", 0},
	"initial-off":          {"sendInitialEvents=false&resourceVersionMatch=NotOlderThan", 0},
	"initial-off-no-match": {"sendInitialEvents=false", 0},
	"match-alone":          {"resourceVersionMatch=NotOlderThan", 0},
	"limit":                {"limit=1", 3},
	"continue":             {"continue=x", 0},
	"label":                {"labelSelector=colour%3Dred", 1},
	"label-bad":            {"labelSelector=a+b", 0},
	"field-name":           {"fieldSelector=metadata.name%3D{a}", 1},
	"field-unknown":        {"fieldSelector=nonsense%3D1", 0},
	"timeout-bad":          {"timeoutSeconds=x", 0},
	"pretty":               {"pretty=true", 3},
}

// watch opens a watch on the script's objects; events is the number of events to wait for.
func watch(k *kind, query string, events int, during ...Step) Step {
	if query != "" {
		query = "&" + strings.ReplaceAll(query, "{a}", k.objectName("a"))
	}
	step := list(k, "watch=1"+query)
	step.Watch = &Watch{During: during, Events: events}
	return step
}

// ending listens until after the end of a watch with a timeout of one second.
func ending(step Step) Step {
	step.Watch.Ends = true
	return step
}

func watchScripts(k *kind) []Script {
	three := threeObjects(k)
	red, plain := `{"metadata":{"labels":{"colour":"red"}}}`, `{"metadata":{"labels":{"colour":null}}}`
	changes := []Step{
		create(k, k.make("d")),
		patch(k, "a", mergePatch, red),
		patch(k, "a", mergePatch, red), // no change, no event
		patch(k, "b", mergePatch, plain),
		remove(k, "c", `{"gracePeriodSeconds":0}`),
	}
	var scripts []Script
	for name, start := range sorted(watchQueries) {
		scripts = append(scripts, script("watch", k, "start/"+name, append(three[:3:3], caughtUp(k, 2), watch(k, start.query, start.before))...))
	}
	changed := 4
	if k == pods || k == namespaces {
		changed = 5 // deletion is two steps, or the namespace stays
	}
	for _, name := range []string{"json", "yaml", "protobuf", "table", "partial", "partial-pb", "stream", "kubectl"} {
		scripts = append(scripts,
			script("watch", k, "accept/"+name, append(three[:3:3], watch(k, "resourceVersion={rv:2}", changed, changes...).accept(accepts[name]))...),
			script("watch", k, "accept-initial/"+name, append(three[:3:3], watch(k, "allowWatchBookmarks=true", 4).accept(accepts[name]))...))
	}
	return append(scripts,
		script("watch", k, "changes", append(three[:3:3], watch(k, "resourceVersion={rv:2}", changed, changes...))...),
		script("watch", k, "transitions", append(three[:3:3], watch(k, "resourceVersion={rv:2}&labelSelector=colour%3Dred", 2, changes...))...),
		script("watch", k, "transitions-away", append(three[:3:3], watch(k, "resourceVersion={rv:2}&labelSelector=colour%21%3Dred,case%3D{id}", 3, changes...))...),
		script("watch", k, "one-object", append(three[:3:3], watch(k, "resourceVersion={rv:2}&fieldSelector=metadata.name%3D{a}", 1, changes...))...),
		script("watch", k, "history", append(append(three[:3:3], changes...), watch(k, "resourceVersion={rv:2}", changed))...),
		script("watch", k, "before-it-exists", watch(k, "allowWatchBookmarks=true", 2, create(k, k.make("a")))),
		script("watch", k, "ends", ending(watch(k, "timeoutSeconds=1&resourceVersion=0", 0))),
		script("watch", k, "finalizer", create(k, k.make("a", metaVariants["finalizer"])),
			watch(k, "resourceVersion={rv:0}", 2, remove(k, "a", ""), patch(k, "a", mergePatch, `{"metadata":{"finalizers":null}}`))),
		script("watch", k, "include-none", append(three[:3:3], watch(k, "includeObject=None", 3).accept(accepts["table"]))...),
	)
}
