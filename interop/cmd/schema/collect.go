package main

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	policyv1beta1 "k8s.io/api/policy/v1beta1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// root is a kind that can be the outermost object of a body.
type root struct {
	group, version string
	example        any
}

// roots are the kinds the coordinator serves or reads. Lists need no entry: every list is metadata and items.
var roots = []root{
	{"", "v1", corev1.Binding{}},
	{"", "v1", corev1.ConfigMap{}},
	{"", "v1", corev1.Endpoints{}},
	{"", "v1", corev1.Event{}},
	{"", "v1", corev1.Namespace{}},
	{"", "v1", corev1.Node{}},
	{"", "v1", corev1.Pod{}},
	{"", "v1", corev1.Secret{}},
	{"", "v1", corev1.Service{}},
	{"", "v1", corev1.ServiceAccount{}},
	{"authentication.k8s.io", "v1", authenticationv1.SelfSubjectReview{}},
	{"authentication.k8s.io", "v1", authenticationv1.TokenRequest{}},
	{"authentication.k8s.io", "v1", authenticationv1.TokenReview{}},
	{"authorization.k8s.io", "v1", authorizationv1.LocalSubjectAccessReview{}},
	{"authorization.k8s.io", "v1", authorizationv1.SelfSubjectAccessReview{}},
	{"authorization.k8s.io", "v1", authorizationv1.SelfSubjectRulesReview{}},
	{"authorization.k8s.io", "v1", authorizationv1.SubjectAccessReview{}},
	{"coordination.k8s.io", "v1", coordinationv1.Lease{}},
	{"discovery.k8s.io", "v1", discoveryv1.EndpointSlice{}},
	{"events.k8s.io", "v1", eventsv1.Event{}},
	{"meta.k8s.io", "v1", metav1.APIGroup{}},
	{"meta.k8s.io", "v1", metav1.APIGroupList{}},
	{"meta.k8s.io", "v1", metav1.APIResourceList{}},
	{"meta.k8s.io", "v1", metav1.APIVersions{}},
	{"meta.k8s.io", "v1", metav1.DeleteOptions{}},
	{"meta.k8s.io", "v1", metav1.ListMeta{}},
	{"meta.k8s.io", "v1", metav1.PartialObjectMetadata{}},
	{"meta.k8s.io", "v1", metav1.Status{}},
	{"policy", "v1", policyv1.Eviction{}},
	{"policy", "v1beta1", policyv1beta1.Eviction{}},
}

// scalars are types whose JSON differs from their Go structure.
var scalars = map[reflect.Type]string{
	reflect.TypeFor[metav1.Time]():                 "Time",
	reflect.TypeFor[metav1.MicroTime]():            "MicroTime",
	reflect.TypeFor[metav1.Duration]():             "Duration",
	reflect.TypeFor[resource.Quantity]():           "Quantity",
	reflect.TypeFor[intstr.IntOrString]():          "IntOrString",
	reflect.TypeFor[metav1.FieldsV1]():             "FieldsV1",
	reflect.TypeFor[runtime.RawExtension]():        "RawExtension",
	reflect.TypeFor[authorizationv1.ExtraValue]():  "StringList",
	reflect.TypeFor[authenticationv1.ExtraValue](): "StringList",
	reflect.TypeFor[metav1.Verbs]():                "StringList",
}

type message struct {
	name string
	// isAtomic: server-side apply replaces it as a whole, in any field.
	isAtomic bool
	fields   []field
}

type field struct {
	name   string
	number int
	// kind is a variant of the Rust enum; message the index of its type when the kind is Message.
	kind    string
	message int
	flags   []string
	// mergeKey is the key of strategic merge patches, keys those of server-side apply.
	mergeKey, keys string
}

type schema struct {
	messages []message
	index    map[reflect.Type]int
	roots    []rootEntry
	merges   *merges
}

type rootEntry struct {
	group, version, kind string
	message              int
}

func collect(merges *merges) (*schema, error) {
	s := &schema{index: map[reflect.Type]int{}, merges: merges}
	for _, one := range roots {
		typ := reflect.TypeOf(one.example)
		index, err := s.message(typ, typeName(typ))
		if err != nil {
			return nil, err
		}
		s.roots = append(s.roots, rootEntry{one.group, one.version, typ.Name(), index})
	}
	return s, nil
}

// typeName is the name OpenAPI and the merge schema give a Go type.
func typeName(typ reflect.Type) string {
	path := strings.Replace(typ.PkgPath(), "k8s.io/", "io.k8s.", 1)
	return strings.ReplaceAll(path, "/", ".") + "." + typ.Name()
}

// message describes a struct and its referenced types, once each. The fields of an inlined struct are merged as fields
// of the surrounding struct, whose name is mergeName.
func (s *schema) message(typ reflect.Type, mergeName string) (int, error) {
	if index, known := s.index[typ]; known {
		return index, nil
	}
	index := len(s.messages)
	s.index[typ] = index
	s.messages = append(s.messages, message{name: typeName(typ), isAtomic: s.merges.isAtomic(typeName(typ))})
	var fields []field
	for i := range typ.NumField() {
		described, err := s.field(typ.Field(i), mergeName)
		if err != nil {
			return 0, fmt.Errorf("%s.%s: %w", typ, typ.Field(i).Name, err)
		}
		if described != nil {
			fields = append(fields, *described)
		}
	}
	s.messages[index].fields = fields
	return index, nil
}

func (s *schema) field(of reflect.StructField, mergeName string) (*field, error) {
	protobuf := of.Tag.Get("protobuf")
	if of.Type == reflect.TypeFor[metav1.TypeMeta]() || protobuf == "" {
		// apiVersion and kind are in the envelope of protobuf bodies; every other field has a number.
		if of.Type == reflect.TypeFor[metav1.TypeMeta]() {
			return nil, nil
		}
		return nil, fmt.Errorf("no protobuf tag")
	}
	number, err := strconv.Atoi(strings.Split(protobuf, ",")[1])
	if err != nil {
		return nil, err
	}
	name, options, _ := strings.Cut(of.Tag.Get("json"), ",")
	out := &field{name: name, number: number}
	typ := of.Type
	isPointer := typ.Kind() == reflect.Pointer
	if isPointer {
		typ = typ.Elem()
		out.flag("POINTER")
	}
	isInline := strings.Contains(options, "inline")
	if isInline {
		out.flag("INLINE")
		out.kind = "Message"
		out.message, err = s.message(typ, mergeName)
		return out, err
	}
	if err := s.shape(out, typ); err != nil {
		return nil, err
	}
	if emitsZero(of.Type, options) {
		out.flag("EMITS_ZERO")
	}
	strategies := strings.Split(of.Tag.Get("patchStrategy"), ",")
	for _, strategy := range strategies {
		switch strategy {
		case "merge":
			out.flag("PATCH_MERGE")
		case "retainKeys":
			out.flag("PATCH_RETAIN_KEYS")
		case "replace":
			out.flag("PATCH_REPLACE")
		}
	}
	out.mergeKey = of.Tag.Get("patchMergeKey")
	s.applyRules(out, mergeName)
	return out, nil
}

// shape sets the type of a value: a scalar, a message, a list or a map of them.
func (s *schema) shape(out *field, typ reflect.Type) error {
	if kind := scalars[typ]; kind != "" {
		out.kind = kind
		return nil
	}
	switch typ.Kind() {
	case reflect.Slice:
		if typ.Elem().Kind() == reflect.Uint8 {
			out.kind = "Bytes"
			return nil
		}
		out.flag("LIST")
		return s.element(out, typ.Elem())
	case reflect.Map:
		out.flag("MAP")
		return s.element(out, typ.Elem())
	default:
		return s.element(out, typ)
	}
}

func (s *schema) element(out *field, typ reflect.Type) error {
	if kind := scalars[typ]; kind != "" {
		out.kind = kind
		return nil
	}
	switch typ.Kind() {
	case reflect.Bool:
		out.kind = "Bool"
	case reflect.Int32:
		out.kind = "Int32"
	case reflect.Int64:
		out.kind = "Int64"
	case reflect.String:
		out.kind = "String"
	case reflect.Slice:
		if typ.Elem().Kind() != reflect.Uint8 {
			return fmt.Errorf("a list of lists: %s", typ)
		}
		out.kind = "Bytes"
	case reflect.Struct:
		out.kind = "Message"
		index, err := s.message(typ, typeName(typ))
		out.message = index
		return err
	default:
		return fmt.Errorf("unknown type %s", typ)
	}
	return nil
}

// applyRules sets the field's merge rules of server-side apply.
func (s *schema) applyRules(out *field, mergeName string) {
	rule := s.merges.field(mergeName, out.name)
	if rule == nil {
		return
	}
	switch {
	case rule.Type.List != nil && rule.Type.List.ElementRelationship == "associative":
		out.keys = s.merges.keys(rule.Type.List)
		if out.keys == "" {
			out.flag("APPLY_SET")
		} else {
			out.flag("APPLY_KEYED")
		}
	case rule.Type.List != nil:
		out.flag("APPLY_ATOMIC")
	case rule.Type.Map != nil && rule.Type.Map.ElementRelationship == "atomic",
		rule.Type.ElementRelationship == "atomic",
		rule.Type.NamedType != "" && s.merges.isAtomic(rule.Type.NamedType):
		out.flag("APPLY_ATOMIC")
	}
}

func (f *field) flag(name string) { f.flags = append(f.flags, name) }

// emitsZero reports whether Go's JSON encoder writes the field when it is unset.
func emitsZero(typ reflect.Type, options string) bool {
	if strings.Contains(options, "omitzero") {
		return false
	}
	if !strings.Contains(options, "omitempty") {
		return true
	}
	return typ.Kind() == reflect.Struct
}
