package harness

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// Count lists a resource in full and returns the number of objects.
func Count(ctx context.Context, server Kubeconfig, gvr schema.GroupVersionResource) (int, error) {
	client, err := dynamic.NewForConfig(server.Config(PlainAgent))
	if err != nil {
		return 0, err
	}
	list, err := client.Resource(gvr).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	return len(list.Items), nil
}
