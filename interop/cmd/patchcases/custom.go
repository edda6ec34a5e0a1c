package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// customType is a server's type of a custom resource whose definition keeps unknown fields. Metadata has its type,
// everything else is deduced.
const customType = `
- name: custom
  map:
    fields:
    - name: apiVersion
      type:
        scalar: string
    - name: kind
      type:
        scalar: string
    - name: metadata
      type:
        namedType: io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta
      default: {}
    elementType:
      namedType: __untyped_deduced_
    elementRelationship: separable
`

// customConverter types custom resources.
type customConverter struct {
	typ typed.ParseableType
}

// newCustomConverter reads the type of metadata from client-go's source, because the schema is in an internal package.
func newCustomConverter() (*customConverter, error) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/client-go").Output()
	if err != nil {
		return nil, fmt.Errorf("cannot find the source of k8s.io/client-go: %w", err)
	}
	file := filepath.Join(strings.TrimSpace(string(dir)), "applyconfigurations", "internal", "internal.go")
	source, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	_, rest, found := strings.Cut(string(source), "schemaYAML = typed.YAMLObject(`")
	text, _, closed := strings.Cut(rest, "`)")
	if !found || !closed {
		return nil, fmt.Errorf("%s no longer holds schemaYAML as it did", file)
	}
	parser, err := typed.NewParser(typed.YAMLObject(strings.TrimRight(text, "\n") + customType))
	if err != nil {
		return nil, err
	}
	return &customConverter{parser.Type("custom")}, nil
}

func (c *customConverter) ObjectToTyped(object runtime.Object, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
	return c.typ.FromUnstructured(object.(*unstructured.Unstructured).Object, options...)
}

func (c *customConverter) TypedToObject(value *typed.TypedValue) (runtime.Object, error) {
	return &unstructured.Unstructured{Object: value.AsValue().Unstructured().(map[string]any)}, nil
}
