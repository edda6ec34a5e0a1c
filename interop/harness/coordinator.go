package harness

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// startLimit is the maximum start time of our binaries. It is far above the target, so that a busy machine does not
// fail an unrelated test; `cargo xtask bench` measures the real value.
const startLimit = 60 * time.Second

// readyPoll is the polling interval for readiness.
const readyPoll = 10 * time.Millisecond

// Coordinator is a running (or killed) yurt-coordinator.
type Coordinator struct {
	// URL is https://127.0.0.1:<port>.
	URL string
	// Port is its secure port.
	Port int
	// DataDir survives restarts.
	DataDir string
	// Admin is a member of system:masters at the coordinator.
	Admin Kubeconfig
	// AdminFile is Admin as a kubeconfig file.
	AdminFile string
	// Process is the present process.
	Process *Process

	command Command
	client  *http.Client
}

// CoordinatorArgs are the flags of a coordinator of profile pool that trusts the cloud's CA.
func (c *Cloud) CoordinatorArgs(dir string, port int, pool string) ([]string, error) {
	serving, err := c.CA.IssueServer("yurt-coordinator", "127.0.0.1", "localhost")
	if err != nil {
		return nil, err
	}
	cert, key, err := serving.Write(dir, "coordinator")
	if err != nil {
		return nil, err
	}
	return []string{
		"--profile=pool", "--nodepool-name=" + pool, "--trust-first-leader=true", "--data-dir=" + filepath.Join(dir, "coordinator"),
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
		"--client-ca-file=" + c.CAFile, "--tls-cert-file=" + cert, "--tls-private-key-file=" + key,
	}, nil
}

// startPoolCoordinator starts the coordinator of a pool and waits until it serves.
func (c *Cloud) startPoolCoordinator(ctx context.Context, dir, pool string, env []string) (*Coordinator, error) {
	path, err := YurtBinary("yurt-coordinator")
	if err != nil {
		return nil, err
	}
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	args, err := c.CoordinatorArgs(dir, port, pool)
	if err != nil {
		return nil, err
	}
	return c.startCoordinator(ctx, path, dir, port, args, env)
}

// StartStandalone starts a coordinator of profile standalone that trusts the cloud's CA and has no other link to the
// cloud: a second server for the same clients.
func (c *Cloud) StartStandalone(ctx context.Context, dir string, flags ...string) (*Coordinator, error) {
	path, err := YurtBinary("yurt-coordinator")
	if err != nil {
		return nil, err
	}
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	args, err := c.CoordinatorArgs(dir, port, "")
	if err != nil {
		return nil, err
	}
	args[0] = "--profile=standalone"
	return c.startCoordinator(ctx, path, dir, port, append(args, flags...), nil)
}

// startCoordinator starts the program and waits until it serves.
func (c *Cloud) startCoordinator(ctx context.Context, path, dir string, port int, args, env []string) (*Coordinator, error) {
	k := &Coordinator{Port: port, URL: fmt.Sprintf("https://127.0.0.1:%d", port), DataDir: filepath.Join(dir, "coordinator"),
		command: Command{Name: "yurt-coordinator", Path: path, Args: args, Dir: dir, Env: env}}
	k.Admin = Kubeconfig{Server: k.URL, CA: c.CA.CertPEM, Identity: c.Admin.Identity}
	k.AdminFile = filepath.Join(dir, "coordinator-admin.kubeconfig")
	if err := k.Admin.Write(k.AdminFile); err != nil {
		return nil, err
	}
	client, err := httpClientFor(k.Admin)
	if err != nil {
		return nil, err
	}
	k.client = client
	return k, k.Start(ctx)
}

// StartStandalone starts yurt-coordinator --profile standalone in dir. It creates its own certificates.
func StartStandalone(ctx context.Context, dir string, flags ...string) (*Coordinator, error) {
	path, err := YurtBinary("yurt-coordinator")
	if err != nil {
		return nil, err
	}
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	k := &Coordinator{Port: port, URL: fmt.Sprintf("https://127.0.0.1:%d", port), DataDir: data, AdminFile: filepath.Join(data, "admin.kubeconfig"),
		command: Command{Name: "yurt-coordinator", Path: path, Dir: dir, Args: append([]string{
			"--profile=standalone", "--data-dir=" + data, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
		}, flags...)}}
	if err := k.launch(); err != nil {
		return nil, err
	}
	err = PollProcess(ctx, k.Process, startLimit, readyPoll, func(context.Context) error {
		_, err := os.Stat(k.AdminFile)
		return err
	})
	if err != nil {
		return nil, err
	}
	if k.Admin, err = ReadKubeconfig(k.AdminFile); err != nil {
		return nil, err
	}
	if k.Admin.Server != k.URL {
		return nil, fmt.Errorf("%s names server %q, want %q", k.AdminFile, k.Admin.Server, k.URL)
	}
	if k.client, err = httpClientFor(k.Admin); err != nil {
		return nil, err
	}
	return k, k.waitReady(ctx)
}

// Start starts or restarts the process on the same data and port and waits until /readyz returns 200.
func (k *Coordinator) Start(ctx context.Context) error {
	if err := k.launch(); err != nil {
		return err
	}
	return k.waitReady(ctx)
}

// Restart restarts the process on the same data and returns the time from exec to ready.
func (k *Coordinator) Restart(ctx context.Context) (time.Duration, error) {
	if err := k.Process.Stop(); err != nil {
		return 0, err
	}
	if err := k.launch(); err != nil {
		return 0, err
	}
	err := PollProcess(ctx, k.Process, startLimit, time.Millisecond, func(ctx context.Context) error {
		return ExpectOK(ctx, k.client, k.URL+"/readyz")
	})
	return time.Since(k.Process.StartedAt), err
}

// Metrics scrapes /metrics.
func (k *Coordinator) Metrics(ctx context.Context) (Metrics, error) {
	page, err := httpGet(ctx, k.client, k.URL+"/metrics")
	if err != nil {
		return nil, err
	}
	return ParseMetrics(page), nil
}

// Get reads a path as the administrator.
func (k *Coordinator) Get(ctx context.Context, path string) ([]byte, error) {
	return httpGet(ctx, k.client, k.URL+path)
}

func (k *Coordinator) launch() error {
	if k.Process != nil && k.Process.Running() {
		return errors.New("the coordinator is still running: kill or stop it first")
	}
	p, err := Start(k.command)
	if err != nil {
		return err
	}
	k.Process = p
	return nil
}

func (k *Coordinator) waitReady(ctx context.Context) error {
	return PollProcess(ctx, k.Process, startLimit, readyPoll, func(ctx context.Context) error {
		return ExpectOK(ctx, k.client, k.URL+"/readyz")
	})
}
