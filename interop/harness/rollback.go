package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Backup is a copy of the data of the cloud's etcd at one moment.
type Backup struct{ dir string }

// Backup copies the data of etcd, which it stops for that moment; kube-apiserver keeps running.
func (c *Cloud) Backup(ctx context.Context) (Backup, error) {
	backup := Backup{dir: filepath.Join(c.Dir, "etcd-backup")}
	if err := errors.Join(c.etcd.Stop(), os.RemoveAll(backup.dir)); err != nil {
		return backup, err
	}
	if err := os.CopyFS(backup.dir, os.DirFS(c.etcdDir())); err != nil {
		return backup, err
	}
	if err := c.startEtcdAgain(ctx); err != nil {
		return backup, err
	}
	return backup, c.waitAPIServer(ctx, c.apiServer, c.URL)
}

// Restore resets the cloud to a backup. All later writes are lost, and their resourceVersions are issued again. It
// returns when kube-apiserver, which has to restart, is ready.
func (c *Cloud) Restore(ctx context.Context, backup Backup) error {
	if err := errors.Join(c.apiServer.Stop(), c.etcd.Stop(), os.RemoveAll(c.etcdDir())); err != nil {
		return err
	}
	if err := os.CopyFS(c.etcdDir(), os.DirFS(backup.dir)); err != nil {
		return err
	}
	if err := c.startEtcdAgain(ctx); err != nil {
		return err
	}
	return c.startAPIServer(ctx)
}

// RestartAPIServer restarts kube-apiserver with empty caches.
func (c *Cloud) RestartAPIServer(ctx context.Context) error {
	if err := c.apiServer.Stop(); err != nil {
		return err
	}
	return c.startAPIServer(ctx)
}

// RestartEtcd restarts etcd with its data.
func (c *Cloud) RestartEtcd(ctx context.Context) error {
	if err := c.etcd.Stop(); err != nil {
		return err
	}
	return c.startEtcdAgain(ctx)
}

// Kill ends kube-apiserver and etcd with SIGKILL.
func (c *Cloud) Kill() {
	c.apiServer.Kill()
	c.etcd.Kill()
}

// Return starts etcd and kube-apiserver again, with the data of before.
func (c *Cloud) Return(ctx context.Context) error {
	if err := c.startEtcdAgain(ctx); err != nil {
		return err
	}
	return c.startAPIServer(ctx)
}

// SecondAPIServer is another kube-apiserver on the cloud's etcd, behind its own link.
type SecondAPIServer struct {
	// URL is its address.
	URL string
	// Etcd is its link to etcd: while the link is held, the server lags.
	Etcd *Link
}

// StartSecondAPIServer starts one more kube-apiserver; it ends with the cloud.
func (c *Cloud) StartSecondAPIServer(ctx context.Context) (*SecondAPIServer, error) {
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	link, err := NewLink(strings.TrimPrefix(c.etcdURL, "http://"))
	if err != nil {
		return nil, err
	}
	command := c.apiServerCommand
	command.Name, command.Args = "kube-apiserver-2", slices.Clone(command.Args)
	other := map[string]string{
		"--etcd-servers=": "http://" + link.Address(), "--secure-port=": fmt.Sprint(port),
		"--audit-log-path=": filepath.Join(c.Dir, "audit-2.log"),
	}
	for i, arg := range command.Args {
		for name, value := range other {
			if strings.HasPrefix(arg, name) {
				command.Args[i] = name + value
			}
		}
	}
	server, err := Start(command)
	if err != nil {
		return nil, err
	}
	c.onStop(func() { _ = link.Resume(); _ = server.Stop(); link.Close() })
	second := &SecondAPIServer{URL: fmt.Sprintf("https://127.0.0.1:%d", port), Etcd: link}
	return second, c.waitAPIServer(ctx, server, second.URL)
}

func (c *Cloud) etcdDir() string { return filepath.Join(c.Dir, "etcd") }

func (c *Cloud) startEtcdAgain(ctx context.Context) error {
	etcd, err := startEtcdAt(ctx, c.Dir, c.etcdURL, c.etcdPeerURL)
	if err == nil {
		c.etcd = etcd
	}
	return err
}

// Compact compacts all revisions of etcd but the present one.
func (c *Cloud) Compact(ctx context.Context) error {
	var now struct {
		Header struct {
			Revision string `json:"revision"`
		} `json:"header"`
	}
	if err := c.askEtcd(ctx, "/v3/kv/range", `{"key":"AA=="}`, &now); err != nil {
		return err
	}
	return c.askEtcd(ctx, "/v3/kv/compaction", fmt.Sprintf(`{"revision":%q,"physical":true}`, now.Header.Revision), &struct{}{})
}

func (c *Cloud) askEtcd(ctx context.Context, path, body string, answer any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.etcdURL+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd: %s: %s", path, response.Status)
	}
	return json.NewDecoder(response.Body).Decode(answer)
}
