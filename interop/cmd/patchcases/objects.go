package main

import (
	"encoding/json"
	"math/rand"
	"sort"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// sample is a rich object of a kind; variants of it are valid objects of the kind, too.
type sample struct {
	kind  schema.GroupVersionKind
	typed any
	text  string
}

func core(kind string) schema.GroupVersionKind { return corev1.SchemeGroupVersion.WithKind(kind) }

var samples = []sample{
	{core("Pod"), corev1.Pod{}, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"n","labels":{"app":"a","tier":"b"},
	  "annotations":{"x/y":"1"},"finalizers":["a/b","c/d","e/f"],
	  "ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"o","uid":"u1"},{"apiVersion":"v1","kind":"Node","name":"o2","uid":"u2"}]},
	  "spec":{"nodeName":"n1","nodeSelector":{"a":"b","c":"d"},"hostNetwork":true,"terminationGracePeriodSeconds":30,
	   "containers":[{"name":"a","image":"i:1","args":["x","y"],"env":[{"name":"E","value":"1"},{"name":"F","value":"2"}],
	     "ports":[{"containerPort":80,"protocol":"TCP"},{"containerPort":80,"protocol":"UDP"},{"containerPort":81,"name":"web"}],
	     "volumeMounts":[{"name":"v","mountPath":"/v"},{"name":"w","mountPath":"/w"}],
	     "resources":{"limits":{"cpu":"1","memory":"1Gi"}},"securityContext":{"capabilities":{"add":["A","B"]}}},
	    {"name":"b","image":"i:2","command":["run"]},{"name":"c","image":"i:3"}],
	   "initContainers":[{"name":"i","image":"i:4"}],
	   "volumes":[{"name":"v","emptyDir":{"medium":"Memory"}},{"name":"w","hostPath":{"path":"/h"}},{"name":"x","configMap":{"name":"m","items":[{"key":"k","path":"p"}]}}],
	   "tolerations":[{"key":"a","operator":"Exists"},{"key":"b","operator":"Equal","value":"v"}],
	   "imagePullSecrets":[{"name":"s1"},{"name":"s2"}],"hostAliases":[{"ip":"1.1.1.1","hostnames":["a","b"]}],
	   "topologySpreadConstraints":[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule"}],
	   "readinessGates":[{"conditionType":"x"}]},
	  "status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"},{"type":"Initialized","status":"False"}],
	   "podIPs":[{"ip":"10.0.0.1"},{"ip":"10.0.0.2"}],"containerStatuses":[{"name":"a","ready":true,"restartCount":1,"image":"i:1","imageID":""}]}}`},
	{core("Node"), corev1.Node{}, `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n","labels":{"a":"b","c":"d"}},
	  "spec":{"podCIDR":"10.0.0.0/24","podCIDRs":["10.0.0.0/24","fd00::/64"],"unschedulable":true,
	   "taints":[{"key":"k","effect":"NoSchedule"},{"key":"l","value":"v","effect":"NoExecute"}]},
	  "status":{"capacity":{"cpu":"4","memory":"8Gi"},"addresses":[{"type":"InternalIP","address":"1.1.1.1"},{"type":"Hostname","address":"n"}],
	   "conditions":[{"type":"Ready","status":"True","reason":"r"},{"type":"DiskPressure","status":"False"},{"type":"PIDPressure","status":"False"}],
	   "images":[{"names":["a:1","a@x"],"sizeBytes":10},{"names":["b:1"],"sizeBytes":20}],"volumesInUse":["v1","v2"]}}`},
	{core("Service"), corev1.Service{}, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"s","namespace":"n","labels":{"a":"b"}},
	  "spec":{"type":"ClusterIP","clusterIP":"10.0.0.1","clusterIPs":["10.0.0.1","fd00::1"],"externalIPs":["1.1.1.1","2.2.2.2"],"selector":{"app":"a","tier":"b"},
	   "ports":[{"name":"http","port":80,"targetPort":8080,"protocol":"TCP"},{"name":"https","port":443,"targetPort":"tls"},{"name":"dns","port":53,"protocol":"UDP"}],
	   "sessionAffinityConfig":{"clientIP":{"timeoutSeconds":10}}},
	  "status":{"loadBalancer":{"ingress":[{"ip":"3.3.3.3","ports":[{"port":80,"protocol":"TCP"}]}]},"conditions":[{"type":"x","status":"True"}]}}`},
	{core("Endpoints"), corev1.Endpoints{}, `{"apiVersion":"v1","kind":"Endpoints","metadata":{"name":"s","namespace":"n","labels":{"a":"b"}},
	  "subsets":[{"addresses":[{"ip":"1.1.1.1","nodeName":"n"},{"ip":"1.1.1.2"}],"ports":[{"name":"p","port":80}]},{"addresses":[{"ip":"2.2.2.2"}]}]}`},
	{core("ServiceAccount"), corev1.ServiceAccount{}, `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"a","namespace":"n"},
	  "secrets":[{"name":"a"},{"name":"b"},{"name":"c","namespace":"x"}],"imagePullSecrets":[{"name":"p"},{"name":"q"}],"automountServiceAccountToken":true}`},
	{core("Event"), corev1.Event{}, `{"apiVersion":"v1","kind":"Event","metadata":{"name":"e","namespace":"n"},"count":3,"message":"m","reason":"r","type":"Normal",
	  "involvedObject":{"kind":"Pod","name":"p","namespace":"n"},"source":{"component":"kubelet","host":"h"},"series":{"count":4}}`},
	{core("ConfigMap"), corev1.ConfigMap{}, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m","namespace":"n","annotations":{"a":"b"}},
	  "data":{"a":"1","b":"2","c":"3"},"binaryData":{"x":"AAEC"}}`},
	{discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), discoveryv1.EndpointSlice{}, `{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice",
	  "metadata":{"name":"e","namespace":"n","labels":{"kubernetes.io/service-name":"s"}},"addressType":"IPv4",
	  "endpoints":[{"addresses":["1.1.1.1"],"conditions":{"ready":true},"hints":{"forZones":[{"name":"z"}]}},{"addresses":["1.1.1.2"]}],
	  "ports":[{"name":"p","port":80,"protocol":"TCP"},{"name":"q","port":81}]}`},
}

func (s sample) object() map[string]any {
	object := map[string]any{}
	if err := json.Unmarshal([]byte(s.text), &object); err != nil {
		panic(s.kind.Kind + ": " + err.Error())
	}
	return integers(object).(map[string]any)
}

// integers converts the floats of encoding/json to int64, as the API's own decoder does.
func integers(value any) any {
	switch value := value.(type) {
	case float64:
		return int64(value)
	case map[string]any:
		for key, inner := range value {
			value[key] = integers(inner)
		}
	case []any:
		for i, inner := range value {
			value[i] = integers(inner)
		}
	}
	return value
}

func clone(value any) any {
	switch value := value.(type) {
	case map[string]any:
		copied := map[string]any{}
		for key, inner := range value {
			copied[key] = clone(inner)
		}
		return copied
	case []any:
		copied := make([]any, len(value))
		for i, inner := range value {
			copied[i] = clone(inner)
		}
		return copied
	}
	return value
}

func keysOf(object map[string]any) []string {
	keys := make([]string, 0, len(object))
	for key := range object {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

// identities are fields that identify elements. A variant keeps them, so that most cases are valid.
var identities = map[string]bool{
	"name": true, "type": true, "uid": true, "ip": true, "containerPort": true, "port": true, "mountPath": true, "key": true,
	"apiVersion": true, "kind": true, "metadata": true, "address": true, "topologyKey": true, "whenUnsatisfiable": true, "conditionType": true,
}

// vary changes a value in place, about one place in ten, and returns it.
func vary(random *rand.Rand, value any) any {
	switch value := value.(type) {
	case map[string]any:
		for _, key := range keysOf(value) {
			if key == "apiVersion" || key == "kind" {
				continue
			}
			if !identities[key] && random.Intn(8) == 0 {
				delete(value, key)
				continue
			}
			if identities[key] && key != "metadata" {
				continue
			}
			value[key] = vary(random, value[key])
		}
		return value
	case []any:
		kept := []any{}
		for _, item := range value {
			if random.Intn(6) != 0 {
				kept = append(kept, vary(random, item))
			}
			if random.Intn(8) == 0 {
				kept = append(kept, another(random, item))
			}
		}
		if random.Intn(5) == 0 {
			random.Shuffle(len(kept), func(i, j int) { kept[i], kept[j] = kept[j], kept[i] })
		}
		return kept
	case string:
		if random.Intn(10) == 0 {
			return value + "x"
		}
	case int64:
		if random.Intn(10) == 0 {
			return value + 1
		}
	}
	return value
}

// another returns a new list element that is similar to an existing one.
func another(random *rand.Rand, item any) any {
	switch item := clone(item).(type) {
	case map[string]any:
		for _, key := range keysOf(item) {
			if identities[key] {
				switch old := item[key].(type) {
				case string:
					item[key] = old + string(rune('g'+random.Intn(10)))
				case int64:
					item[key] = old + 100 + int64(random.Intn(10))
				}
			}
		}
		return item
	case string:
		return item + string(rune('g'+random.Intn(10)))
	default:
		return item
	}
}
