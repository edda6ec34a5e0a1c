package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

// merges holds the merge rules of server-side apply, by type name and JSON field name.
type merges struct {
	types map[string]smdType
}

// The relevant parts of a structured-merge-diff schema.
type smdSchema struct {
	Types []smdType `yaml:"types"`
}

type smdType struct {
	Name string `yaml:"name"`
	Map  *smdMap
}

type smdMap struct {
	Fields              []smdField `yaml:"fields"`
	ElementRelationship string     `yaml:"elementRelationship"`
}

type smdField struct {
	Name    string `yaml:"name"`
	Default any    `yaml:"default"`
	Type    struct {
		NamedType           string   `yaml:"namedType"`
		ElementRelationship string   `yaml:"elementRelationship"`
		List                *smdList `yaml:"list"`
		Map                 *smdMap  `yaml:"map"`
	} `yaml:"type"`
}

type smdList struct {
	ElementRelationship string   `yaml:"elementRelationship"`
	Keys                []string `yaml:"keys"`
	ElementType         struct {
		NamedType string `yaml:"namedType"`
	} `yaml:"elementType"`
}

// loadMerges reads the schema from client-go's source: it is in an internal package, so it cannot be imported.
func loadMerges() (*merges, error) {
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
	var schema smdSchema
	if err := yaml.Unmarshal([]byte(text), &schema); err != nil {
		return nil, err
	}
	all := &merges{types: map[string]smdType{}}
	for _, one := range schema.Types {
		all.types[one.Name] = one
	}
	return all, nil
}

// field returns the merge rules of a type's field; nil if the schema lacks it.
func (m *merges) field(typeName, name string) *smdField {
	found, ok := m.types[typeName]
	if !ok || found.Map == nil {
		return nil
	}
	for i := range found.Map.Fields {
		if found.Map.Fields[i].Name == name {
			return &found.Map.Fields[i]
		}
	}
	return nil
}

// isAtomic reports whether a type is replaced as a whole.
func (m *merges) isAtomic(typeName string) bool {
	found, ok := m.types[typeName]
	return ok && found.Map != nil && found.Map.ElementRelationship == "atomic"
}

// keys of an associative list, with the default of each key that has one, as JSON: `containerPort=0,protocol="TCP"`.
func (m *merges) keys(list *smdList) string {
	var parts []string
	for _, key := range list.Keys {
		part := key
		if field := m.field(list.ElementType.NamedType, key); field != nil && field.Default != nil {
			if text, err := json.Marshal(field.Default); err == nil {
				part += "=" + string(text)
			}
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ",")
}
