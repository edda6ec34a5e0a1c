package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"math/rand"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields/managedfieldstest"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
)

const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// applyCases are sequences of applies and updates by several managers over one object. Every step records the resulting
// object and its managedFields (without times), or the reason of its rejection.
func applyCases(random *rand.Rand) ([]any, error) {
	types := applyconfigurations.NewTypeConverter(scheme.Scheme)
	var cases []any
	for round := range 120 {
		one := samples[round%len(samples)]
		cases = append(cases, applyCase(random, one, managedfieldstest.NewTestFieldManager(types, one.kind)))
	}
	custom, err := newCustomConverter()
	if err != nil {
		return nil, err
	}
	for round := range 32 {
		one := samples[round%len(samples)]
		one.kind = schema.GroupVersionKind{Group: "apps.openyurt.io", Version: "v1beta2", Kind: "NodePool"}
		cases = append(cases, applyCase(random, one, managedfieldstest.NewTestFieldManager(custom, one.kind)))
	}
	return cases, nil
}

func applyCase(random *rand.Rand, one sample, manager managedfieldstest.TestFieldManager) any {
	var steps []any
	for range 2 + random.Intn(5) {
		steps = append(steps, applyStep(random, one, manager))
	}
	return map[string]any{"group": one.kind.Group, "version": one.kind.Version, "kind": one.kind.Kind, "steps": steps}
}

func applyStep(random *rand.Rand, one sample, manager managedfieldstest.TestFieldManager) map[string]any {
	content := vary(random, one.object()).(map[string]any)
	who := []string{"alice", "bob", "kubectl"}[random.Intn(3)]
	isApply := random.Intn(3) != 0
	content["apiVersion"], content["kind"] = one.kind.GroupVersion().String(), one.kind.Kind
	if isApply {
		content = part(random, content).(map[string]any)
	} else if random.Intn(2) == 0 {
		annotate(random, content)
	}
	step := map[string]any{"manager": who, "apply": isApply, "object": clone(content)}
	object := &unstructured.Unstructured{Object: content}
	var err error
	if isApply {
		force := random.Intn(3) == 0
		step["force"] = force
		err = manager.Apply(object, who, force)
	} else {
		err = manager.Update(object, who)
	}
	if err != nil {
		step["error"] = refusal(err)
		return step
	}
	live := manager.Live().(*unstructured.Unstructured).DeepCopy()
	live.SetManagedFields(nil)
	step["live"] = live.Object
	step["managedFields"] = withoutTimes(manager.ManagedFields())
	return step
}

// annotate makes the object look as if client-side apply had set a part of it.
func annotate(random *rand.Rand, object map[string]any) {
	text, err := json.Marshal(part(random, clone(object)))
	if err != nil {
		panic(err)
	}
	metadata := object["metadata"].(map[string]any)
	annotations, ok := metadata["annotations"].(map[string]any)
	if !ok {
		annotations = map[string]any{}
	}
	annotations[lastApplied] = string(text)
	metadata["annotations"] = annotations
}

// part is a random part of an object: whole members and elements are omitted or null, identities stay.
func part(random *rand.Rand, value any) any {
	switch value := value.(type) {
	case map[string]any:
		for _, key := range keysOf(value) {
			if identities[key] && key != "metadata" {
				continue
			}
			if key != "metadata" && key != "spec" && random.Intn(3) == 0 {
				delete(value, key)
				continue
			}
			if key != "metadata" && key != "spec" && random.Intn(30) == 0 {
				value[key] = nil
				continue
			}
			value[key] = part(random, value[key])
		}
		return value
	case []any:
		kept := []any{}
		for _, item := range value {
			if random.Intn(3) != 0 {
				kept = append(kept, part(random, item))
			}
		}
		return kept
	}
	return value
}

func refusal(err error) map[string]any {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return map[string]any{"message": err.Error()}
	}
	found := map[string]any{"message": status.Status().Message, "code": status.Status().Code}
	if details := status.Status().Details; details != nil {
		// Their order is undefined.
		slices.SortFunc(details.Causes, func(a, b metav1.StatusCause) int {
			return cmp.Or(cmp.Compare(a.Message, b.Message), cmp.Compare(a.Field, b.Field))
		})
		found["causes"] = details.Causes
	}
	return found
}

func withoutTimes(entries []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	for i := range entries {
		entries[i].Time = nil
	}
	return entries
}
