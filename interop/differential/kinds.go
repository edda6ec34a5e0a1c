package differential

import (
	"encoding/json"
	"fmt"
	"strings"
)

// kind is the generators' description of one resource. JSON texts may hold {ns} and {id}.
type kind struct {
	// name is the part of a script's id: the plural, for events.k8s.io "events.events.k8s.io".
	name string
	// base is the path up to the namespace: /api/v1 or /apis/GROUP/VERSION.
	base string
	// plural is the last part of the collection's path.
	plural string
	// clusterScoped kinds have no namespace; their names carry the script's.
	clusterScoped bool
	// hasStatus is true if there is a subresource status.
	hasStatus bool
	// object is a complete valid object without name and namespace.
	object string
	// change is a merge patch that alters an object validly.
	change string
	// statusChange is a merge patch that alters the status.
	statusChange string
	// variants are merge patches on object for creates, valid or not.
	variants map[string]string
	// updates are merge patches on a stored object for updates, valid or not.
	updates map[string]string
	// patches are strategic merge patches.
	patches map[string]string
	// fields are field selectors.
	fields []string
}

// collection is the path of the kind's objects in the script's namespace.
func (k *kind) collection() string {
	if k.clusterScoped {
		return k.base + "/" + k.plural
	}
	return k.base + "/namespaces/{ns}/" + k.plural
}

// everywhere is the path of all objects of the kind.
func (k *kind) everywhere() string { return k.base + "/" + k.plural }

// item is the path of the script's object with a short name.
func (k *kind) item(short string) string { return k.collection() + "/" + k.objectName(short) }

// objectName makes a short name unique among scripts for kinds without a namespace.
func (k *kind) objectName(short string) string {
	if k.clusterScoped {
		return "{id}-" + short
	}
	return short
}

// make returns the kind's object under a short name with merge patches applied.
func (k *kind) make(short string, patches ...string) string {
	object := parse(k.object)
	merge(object, parse(fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"case":"{id}"}}}`, k.objectName(short))))
	if !k.clusterScoped {
		merge(object, parse(`{"metadata":{"namespace":"{ns}"}}`))
	}
	for _, p := range patches {
		merge(object, parse(p))
	}
	return text(object)
}

func parse(s string) map[string]any {
	var value map[string]any
	if err := json.Unmarshal([]byte(s), &value); err != nil {
		panic(fmt.Sprintf("%v in %s", err, s)) // the texts are constants of this package
	}
	return value
}

func text(value any) string {
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic(err)
	}
	return strings.TrimSuffix(out.String(), "\n")
}

// merge applies an RFC 7396 patch in place.
func merge(target, patch map[string]any) {
	for key, value := range patch {
		child, isMap := value.(map[string]any)
		if value == nil {
			delete(target, key)
			continue
		}
		if !isMap {
			target[key] = value
			continue
		}
		existing, ok := target[key].(map[string]any)
		if !ok {
			existing = map[string]any{}
			target[key] = existing
		}
		merge(existing, child)
	}
}

// metaVariants are merge patches on any object: valid and invalid values of the common metadata.
var metaVariants = map[string]string{
	"labels":             `{"metadata":{"labels":{"app.kubernetes.io/name":"x","b":""},"annotations":{"a.b/c":"some text","D":""}}}`,
	"name-upper":         `{"metadata":{"name":"Upper"}}`,
	"name-underscore":    `{"metadata":{"name":"a_b"}}`,
	"name-dots":          `{"metadata":{"name":"{id}.a.b"}}`,
	"name-digit":         `{"metadata":{"name":"1{id}"}}`,
	"name-slash":         `{"metadata":{"name":"a/b"}}`,
	"name-long":          `{"metadata":{"name":"` + strings.Repeat("n", 254) + `"}}`,
	"name-64":            `{"metadata":{"name":"` + strings.Repeat("n", 55) + `{id}"}}`,
	"no-name":            `{"metadata":{"name":null}}`,
	"generate-name":      `{"metadata":{"name":null,"generateName":"gen-"}}`,
	"generate-name-bad":  `{"metadata":{"name":null,"generateName":"Gen_"}}`,
	"generate-and-name":  `{"metadata":{"generateName":"gen-"}}`,
	"generate-long":      `{"metadata":{"name":null,"generateName":"` + strings.Repeat("g", 70) + `"}}`,
	"namespace-other":    `{"metadata":{"namespace":"other"}}`,
	"namespace-none":     `{"metadata":{"namespace":null}}`,
	"label-key-bad":      `{"metadata":{"labels":{"a b":"x"}}}`,
	"label-value-bad":    `{"metadata":{"labels":{"a":"x y"}}}`,
	"label-value-long":   `{"metadata":{"labels":{"a":"` + strings.Repeat("x", 64) + `"}}}`,
	"label-prefix-bad":   `{"metadata":{"labels":{"-/a":"x"}}}`,
	"annotation-key-bad": `{"metadata":{"annotations":{"a b":"x"}}}`,
	"annotation-upper":   `{"metadata":{"annotations":{"UPPER.example/a":"x"}}}`,
	"annotations-huge":   `{"metadata":{"annotations":{"a":"` + strings.Repeat("x", 262145) + `"}}}`,
	"finalizer":          `{"metadata":{"finalizers":["example.com/a"]}}`,
	"finalizer-bad":      `{"metadata":{"finalizers":["not qualified"]}}`,
	"finalizer-plain":    `{"metadata":{"finalizers":["plain"]}}`,
	"finalizers-both":    `{"metadata":{"finalizers":["orphan","foregroundDeletion"]}}`,
	"owner":              `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"u1"}]}}`,
	"owner-no-uid":       `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n"}]}}`,
	"owner-empty":        `{"metadata":{"ownerReferences":[{}]}}`,
	"owner-event":        `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Event","name":"n","uid":"u1"}]}}`,
	"owner-twice":        `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"u1"},{"apiVersion":"v1","kind":"Node","name":"n","uid":"u1"}]}}`,
	"owner-controllers":  `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"u1","controller":true},{"apiVersion":"v1","kind":"Node","name":"m","uid":"u2","controller":true}]}}`,
	"server-fields":      `{"metadata":{"uid":"5f4c2a8e-0000-4000-8000-000000000000","creationTimestamp":"2001-01-01T00:00:00Z","deletionTimestamp":"2001-01-01T00:00:00Z","deletionGracePeriodSeconds":5,"generation":7,"selfLink":"/x"}}`,
	"rv-zero":            `{"metadata":{"resourceVersion":"0"}}`,
	"rv-set":             `{"metadata":{"resourceVersion":"12345"}}`,
	"managed-fields":     `{"metadata":{"managedFields":[{"manager":"m","operation":"Update","apiVersion":"v1","time":"2001-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{}}}]}}`,
	"managed-fields-bad": `{"metadata":{"managedFields":[{"manager":"m","operation":"Nonsense"}]}}`,
	"unknown-field":      `{"unknown":1,"metadata":{"unknownMeta":"x"}}`,
	"other-kind":         `{"kind":"Banana"}`,
	"other-version":      `{"apiVersion":"v99"}`,
	"no-type":            `{"kind":null,"apiVersion":null}`,
	"no-kind":            `{"kind":null}`,
	"labels-list":        `{"metadata":{"labels":["a"]}}`,
	"label-number":       `{"metadata":{"labels":{"a":1}}}`,
	"metadata-text":      `{"metadata":"x"}`,
	"metadata-null":      `{"metadata":null}`,
	"time-bad":           `{"metadata":{"creationTimestamp":"yesterday"}}`,
}
