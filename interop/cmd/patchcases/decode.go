package main

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/kubernetes/scheme"
)

// decodeCases are bodies with one or two errors: the messages of a strict decoder, and the decoded object.
func decodeCases(random *rand.Rand) ([]any, error) {
	strict := jsonserializer.NewSerializerWithOptions(jsonserializer.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, jsonserializer.SerializerOptions{Strict: true})
	var cases []any
	for round := range 300 {
		one := samples[round%len(samples)]
		content := vary(random, one.object()).(map[string]any)
		for range random.Intn(3) {
			spoil(random, content)
		}
		text, err := json.Marshal(content)
		if err != nil {
			return nil, err
		}
		body := string(text)
		if random.Intn(5) == 0 {
			body = doubled(random, body)
		}
		cases = append(cases, decoded(strict, one, body))
	}
	return cases, nil
}

func decoded(strict runtime.Serializer, one sample, body string) map[string]any {
	found := map[string]any{"group": one.kind.Group, "version": one.kind.Version, "kind": one.kind.Kind, "body": body}
	object, _, err := strict.Decode([]byte(body), nil, nil)
	if faults, isStrict := runtime.AsStrictDecodingError(err); isStrict {
		var texts []string
		for _, fault := range faults.Errors() {
			texts = append(texts, fault.Error())
		}
		found["strict"] = texts
	} else if err != nil {
		found["error"] = err.Error()
		return found
	}
	text, err := json.Marshal(object)
	if err != nil {
		found["error"] = err.Error()
		return found
	}
	found["decoded"] = json.RawMessage(text)
	return found
}

// spoil adds an unknown field, misspells one, or changes the type of a value.
func spoil(random *rand.Rand, object map[string]any) {
	keys := keysOf(object)
	if len(keys) == 0 {
		return
	}
	key := keys[random.Intn(len(keys))]
	if key == "apiVersion" || key == "kind" {
		return
	}
	switch inner := object[key].(type) {
	case map[string]any:
		if random.Intn(4) != 0 {
			spoil(random, inner)
			return
		}
	case []any:
		if len(inner) > 0 && random.Intn(4) != 0 {
			if item, isObject := inner[random.Intn(len(inner))].(map[string]any); isObject {
				spoil(random, item)
				return
			}
		}
	}
	switch random.Intn(7) {
	case 0, 1:
		object["unknown"] = fmt.Sprint(random.Intn(9))
	case 2, 3:
		object[strings.ToUpper(key[:1])+key[1:]] = object[key]
		delete(object, key)
	case 4:
		object[key] = nil
	default:
		object[key] = []any{true, 5, "text", []any{}, map[string]any{}, 1.5, int64(1) << 40}[random.Intn(7)]
	}
}

// doubled repeats a member of the outermost object or of metadata.
func doubled(random *rand.Rand, body string) string {
	if random.Intn(2) == 0 {
		return strings.Replace(body, `"kind":`, `"metadata":{"name":"twice"},"kind":`, 1)
	}
	return strings.Replace(body, `"name":`, `"name":"twice","name":`, 1)
}
