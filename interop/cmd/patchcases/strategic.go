package main

import (
	"encoding/json"
	"errors"
	"math/rand"
	"reflect"

	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// strategicCases are patches between variants of an object, many of them slightly altered, applied to a third variant.
func strategicCases(random *rand.Rand) ([]any, error) {
	var cases []any
	for round := 0; len(cases) < 400; round++ {
		one := samples[round%len(samples)]
		if one.kind.Group != "" {
			continue
		}
		from, to := vary(random, one.object()).(map[string]any), vary(random, one.object()).(map[string]any)
		patch, err := strategicpatch.CreateTwoWayMergeMapPatch(clone(from).(map[string]any), clone(to).(map[string]any), one.typed)
		if err != nil {
			continue
		}
		target := from
		if random.Intn(3) == 0 {
			target = vary(random, one.object()).(map[string]any)
		}
		if random.Intn(2) == 0 {
			bend(random, patch)
		}
		found := map[string]any{"kind": one.kind.Kind, "original": target, "patch": patch}
		result, ok, isStable := merged(target, patch, one.typed)
		if !isStable {
			continue
		}
		if ok {
			found["result"] = result
		}
		cases = append(cases, found)
	}
	return cases, nil
}

// merged repeats the merge: with duplicate directives the result depends on the order of Go's maps.
func merged(original, patch map[string]any, typed any) (first map[string]any, ok, isStable bool) {
	for attempt := range 8 {
		result, err := apply(original, patch, typed)
		if attempt == 0 {
			first, ok = result, err == nil
		} else if ok != (err == nil) || !reflect.DeepEqual(first, result) {
			return nil, false, false
		}
	}
	return first, ok, true
}

func apply(original, patch map[string]any, typed any) (result map[string]any, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = errPanic
		}
	}()
	result, err = strategicpatch.StrategicMergeMapPatch(clone(original).(map[string]any), clone(patch).(map[string]any), typed)
	if err != nil {
		return nil, err
	}
	// A JSON round trip: empty lists that are nil become null in JSON, which the server's decoder drops.
	text, err := json.Marshal(result)
	if err != nil {
		return nil, err
	}
	plain := map[string]any{}
	return plain, json.Unmarshal(text, &plain)
}

var errPanic = errors.New("the implementation panicked")

// bend inserts a directive or a null at a random place.
func bend(random *rand.Rand, patch map[string]any) {
	keys := keysOf(patch)
	if len(keys) == 0 {
		return
	}
	key := keys[random.Intn(len(keys))]
	switch inner := patch[key].(type) {
	case map[string]any:
		switch random.Intn(8) {
		case 0:
			inner["$patch"] = []any{"replace", "delete", "merge"}[random.Intn(3)]
		case 1:
			retained := []any{}
			for _, name := range keysOf(inner) {
				if random.Intn(6) != 0 {
					retained = append(retained, name)
				}
			}
			inner["$retainKeys"] = retained
		case 2:
			if names := keysOf(inner); len(names) > 0 {
				inner[names[random.Intn(len(names))]] = nil
			}
		default:
			bend(random, inner)
		}
	case []any:
		if len(inner) == 0 {
			return
		}
		at := random.Intn(len(inner))
		item, isObject := inner[at].(map[string]any)
		switch {
		case isObject && random.Intn(3) == 0:
			item["$patch"] = []any{"replace", "delete", "delete", "merge"}[random.Intn(4)]
		case isObject && random.Intn(4) == 0:
			names := keysOf(item)
			delete(item, names[random.Intn(len(names))])
		case isObject:
			bend(random, item)
		case random.Intn(2) == 0:
			patch["$deleteFromPrimitiveList/"+key] = []any{inner[at]}
			delete(patch, key)
		default:
			random.Shuffle(len(inner), func(i, j int) { inner[i], inner[j] = inner[j], inner[i] })
		}
	}
}
