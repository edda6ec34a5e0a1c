package harness

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// mountBytes is the size of each Secret and ConfigMap of a NodeLoad.
const mountBytes = 4 << 10

// NodeLoad is what the pods of a full node make their kubelet read: for each pod a Secret, two ConfigMaps and a token.
type NodeLoad struct {
	namespace, node string
	pods            []*corev1.Pod
}

// NewNodeLoad creates so many pods, bound to a node, and what they mount. The namespace must exist, and its default
// account.
func (c *Cloud) NewNodeLoad(ctx context.Context, namespace, node string, pods int) (*NodeLoad, error) {
	l := &NodeLoad{namespace: namespace, node: node}
	for i := range pods {
		name := fmt.Sprintf("pod-%03d", i)
		for _, part := range []string{"a", "b"} {
			config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name + part}, Data: map[string]string{"k": randomText()}}
			if _, err := c.Client.CoreV1().ConfigMaps(namespace).Create(ctx, config, metav1.CreateOptions{}); err != nil {
				return nil, err
			}
		}
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"k": randomText()}}
		if _, err := c.Client.CoreV1().Secrets(namespace).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
			return nil, err
		}
		pod, err := c.Client.CoreV1().Pods(namespace).Create(ctx, l.pod(name), metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		l.pods = append(l.pods, pod)
	}
	return l, nil
}

func (l *NodeLoad) pod(name string) *corev1.Pod {
	spec := corev1.PodSpec{NodeName: l.node, Containers: []corev1.Container{{Name: "main", Image: "interop/main"}}}
	for _, part := range []string{"a", "b"} {
		source := &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name + part}}
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: part, VolumeSource: corev1.VolumeSource{ConfigMap: source}})
	}
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: "s",
		VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}})
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
}

func randomText() string {
	bytes := make([]byte, mountBytes/2)
	_, _ = rand.Read(bytes)
	return hex.EncodeToString(bytes)
}

// RunningLoad are the informers of one start of a kubelet.
type RunningLoad struct {
	load      *NodeLoad
	client    kubernetes.Interface
	informers []cache.SharedIndexInformer
	stop      chan struct{}
	wait      sync.WaitGroup
}

// Start reads as a kubelet does that has just started: one informer for each mounted object, as its watch manager has,
// and one for its pods.
func (l *NodeLoad) Start(hub Kubeconfig) (*RunningLoad, error) {
	config := hub.Config(KubeletAgent)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	r := &RunningLoad{load: l, client: client, stop: make(chan struct{})}
	core := client.CoreV1().RESTClient()
	r.add(cache.NewListWatchFromClient(core, "pods", "", fields.OneTermEqualSelector("spec.nodeName", l.node)), &corev1.Pod{})
	for _, pod := range l.pods {
		for _, volume := range pod.Spec.Volumes {
			switch {
			case volume.Secret != nil:
				r.add(l.named(core, "secrets", volume.Secret.SecretName), &corev1.Secret{})
			case volume.ConfigMap != nil:
				r.add(l.named(core, "configmaps", volume.ConfigMap.Name), &corev1.ConfigMap{})
			}
		}
	}
	for _, informer := range r.informers {
		r.wait.Go(func() { informer.Run(r.stop) })
	}
	return r, nil
}

func (l *NodeLoad) named(client cache.Getter, resource, name string) cache.ListerWatcher {
	return cache.NewListWatchFromClient(client, resource, l.namespace, fields.OneTermEqualSelector("metadata.name", name))
}

func (r *RunningLoad) add(source cache.ListerWatcher, object runtime.Object) {

	informer := cache.NewSharedIndexInformer(source, object, 0, nil)
	_ = informer.SetWatchErrorHandler(func(*cache.Reflector, error) {}) // hundreds of lines while the link is cut
	r.informers = append(r.informers, informer)
}

// Synced returns nil once every informer has its objects.
func (r *RunningLoad) Synced(context.Context) error {
	objects := 0
	for _, informer := range r.informers {
		if informer.HasSynced() {
			objects += len(informer.GetStore().ListKeys())
		}
	}
	if want := len(r.load.pods) + len(r.informers) - 1; objects != want {
		return fmt.Errorf("%d of %d objects", objects, want)
	}
	return nil
}

// Rewrite gives every ConfigMap another content in the cloud, and returns their resourceVersions by name.
func (l *NodeLoad) Rewrite(ctx context.Context, c *Cloud) (map[string]string, error) {
	versions := map[string]string{}
	for _, pod := range l.pods {
		for _, part := range []string{"a", "b"} {
			config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: pod.Name + part}, Data: map[string]string{"k": randomText()}}
			written, err := c.Client.CoreV1().ConfigMaps(l.namespace).Update(ctx, config, metav1.UpdateOptions{})
			if err != nil {
				return nil, err
			}
			versions[written.Name] = written.ResourceVersion
		}
	}
	return versions, nil
}

// Has returns nil once the informers have these versions of the ConfigMaps.
func (r *RunningLoad) Has(versions map[string]string) error {
	have := 0
	for _, informer := range r.informers {
		for _, object := range informer.GetStore().List() {
			if config, is := object.(*corev1.ConfigMap); is && versions[config.Name] == config.ResourceVersion {
				have++
			}
		}
	}
	if have != len(versions) {
		return fmt.Errorf("%d of %d ConfigMaps are current", have, len(versions))
	}
	return nil
}

// Tokens requests a token for every pod, and returns how many were refused, with the last reason.
func (r *RunningLoad) Tokens(ctx context.Context) (int, error) {
	refused := 0
	var last error
	for _, pod := range r.load.pods {
		life := int64(time.Hour / time.Second)
		request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &life,
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}}}
		if _, err := r.client.CoreV1().ServiceAccounts(r.load.namespace).CreateToken(ctx, "default", request, metav1.CreateOptions{}); err != nil {
			refused, last = refused+1, err
		}
	}
	return refused, last
}

// Stop ends the informers.
func (r *RunningLoad) Stop() {
	close(r.stop)
	r.wait.Wait()
}
