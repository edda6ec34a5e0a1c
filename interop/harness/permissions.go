package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"
)

// DelegateGroup is the group of the identity that forwards heartbeats.
const DelegateGroup = "openyurt:yurt-coordinator"

// applyPermissions applies ../manifests/*.yaml, as an operator would.
func (c *Cloud) applyPermissions(ctx context.Context) error {
	root, err := InteropDir()
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(root, "..", "manifests", "*.yaml"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("no *.yaml in %s: the pool's permissions belong there", filepath.Join(root, "..", "manifests"))
	}
	for _, file := range files {
		if err := c.ApplyManifest(ctx, filepath.Base(file), nil); err != nil {
			return err
		}
	}
	return nil
}

// ApplyManifest applies ../manifests/<name>, with every document changed by edit if it is given.
func (c *Cloud) ApplyManifest(ctx context.Context, name string, edit func(*unstructured.Unstructured) error) error {
	root, err := InteropDir()
	if err != nil {
		return err
	}
	file := filepath.Join(root, "..", "manifests", name)
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := c.apply(ctx, text, edit); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// Apply applies every document of a YAML text server-side, as the administrator. It retries a document that names a
// missing object: the API server creates namespaces and its own objects a moment after it is ready.
func (c *Cloud) Apply(ctx context.Context, text []byte) error {
	return c.apply(ctx, text, nil)
}

func (c *Cloud) apply(ctx context.Context, text []byte, edit func(*unstructured.Unstructured) error) error {
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		var object unstructured.Unstructured
		if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if len(object.Object) == 0 {
			continue
		}
		if edit != nil {
			if err := edit(&object); err != nil {
				return err
			}
		}
		err := Poll(ctx, 20*time.Second, 200*time.Millisecond, func(ctx context.Context) error {
			return c.applyOne(ctx, &object)
		})
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
}

func (c *Cloud) applyOne(ctx context.Context, object *unstructured.Unstructured) error {
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(c.Client.Discovery()))
	gvk := object.GroupVersionKind()
	mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return err
	}
	options := metav1.ApplyOptions{FieldManager: "interop", Force: true}
	resource := c.Dynamic.Resource(mapping.Resource)
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		_, err = resource.Apply(ctx, object.GetName(), object, options)
		return err
	}
	namespace := object.GetNamespace()
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	_, err = resource.Namespace(namespace).Apply(ctx, object.GetName(), object, options)
	return err
}
