package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

// Cloud is a kube-apiserver on its own etcd, with its certificate authority.
type Cloud struct {
	// Dir holds every file of the cloud, logs included.
	Dir string
	// CA signs all certificates: serving, node, administrator and coordinator.
	CA *CA
	// CAFile is the CA's certificate as a file.
	CAFile string
	// Port is kube-apiserver's port on 127.0.0.1.
	Port int
	// URL is https://127.0.0.1:<Port>.
	URL string
	// Admin is a member of system:masters at URL.
	Admin Kubeconfig
	// AdminFile is Admin as a kubeconfig file.
	AdminFile string
	// Client is a typed client as Admin.
	Client kubernetes.Interface
	// Dynamic is a dynamic client as Admin.
	Dynamic dynamic.Interface

	etcd                             *Process
	etcdURL, etcdPeerURL             string
	apiServer                        *Process
	apiServerCommand                 Command
	auditLog                         string
	signingKeyFile, verifyingKeyFile string
	flags                            []string // additional flags of kube-apiserver

	mu    sync.Mutex
	stops []func() // guarded by mu; run in reverse order by Stop, before kube-apiserver and etcd
}

// StartCloud starts etcd and kube-apiserver in dir, applies the pool's permissions and returns when both are ready.
// Further flags of kube-apiserver may be given.
func StartCloud(ctx context.Context, dir string, flags ...string) (*Cloud, error) {
	c := &Cloud{Dir: dir, flags: flags, CAFile: filepath.Join(dir, "ca.crt"), auditLog: filepath.Join(dir, "audit.log")}
	if err := c.prepare(); err != nil {
		return nil, err
	}
	ports, err := FreePorts(2)
	if err != nil {
		return nil, err
	}
	c.etcdURL, c.etcdPeerURL = fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	if c.etcd, err = startEtcdAt(ctx, dir, c.etcdURL, c.etcdPeerURL); err != nil {
		return nil, err
	}
	if err := c.startAPIServer(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	if err := c.applyPermissions(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// prepare creates the certificate authority, the administrator and its clients.
func (c *Cloud) prepare() error {
	ca, err := NewCA("interop-cluster-ca")
	if err != nil {
		return err
	}
	c.CA = ca
	if err := os.WriteFile(c.CAFile, ca.CertPEM, 0o644); err != nil {
		return err
	}
	if c.Port, err = FreePort(); err != nil {
		return err
	}
	c.URL = fmt.Sprintf("https://127.0.0.1:%d", c.Port)
	admin, err := ca.IssueClient("interop-admin", "system:masters")
	if err != nil {
		return err
	}
	c.Admin = Kubeconfig{Server: c.URL, CA: ca.CertPEM, Identity: &admin}
	c.AdminFile = filepath.Join(c.Dir, "admin.kubeconfig")
	if err := c.Admin.Write(c.AdminFile); err != nil {
		return err
	}
	config := c.Admin.Config("interop-admin")
	if c.Client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	c.Dynamic, err = dynamic.NewForConfig(config)
	return err
}

// EtcdURL is the URL of the cloud's etcd; other users need their own prefixes.
func (c *Cloud) EtcdURL() string { return c.etcdURL }

// onStop registers f to run when the cloud stops, last registered first.
func (c *Cloud) onStop(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stops = append(c.stops, f)
}

// Stop ends the programs started on the cloud, then kube-apiserver, then its etcd. In the reverse order kube-apiserver
// lingers.
func (c *Cloud) Stop() error {
	c.mu.Lock()
	stops := slices.Clone(c.stops)
	c.stops = nil
	c.mu.Unlock()
	for _, stop := range slices.Backward(stops) {
		stop()
	}
	var errs []error
	for _, p := range []*Process{c.apiServer, c.etcd} {
		if p != nil {
			errs = append(errs, p.Stop())
		}
	}
	return errors.Join(errs...)
}
