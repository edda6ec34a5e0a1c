package harness

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

// source is a ListerWatcher over the dynamic client. It selects sendInitialEvents per informer; client-go's own switch
// is one environment variable for the whole process.
type source struct {
	client    dynamic.ResourceInterface
	watchList bool
}

// List implements cache.ListerWatcher.
func (s *source) List(options metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), options)
}

// Watch implements cache.ListerWatcher.
func (s *source) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), options)
}

// ListWithContext implements cache.ListerWatcherWithContext.
func (s *source) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	return s.client.List(ctx, options)
}

// WatchWithContext implements cache.ListerWatcherWithContext.
func (s *source) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return s.client.Watch(ctx, options)
}

// IsWatchListSemanticsUnSupported reports to client-go whether it must list.
func (s *source) IsWatchListSemanticsUnSupported() bool { return !s.watchList }
