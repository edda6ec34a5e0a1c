package harness

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"time"
)

// StartEtcd starts a one-member etcd that does not fsync (its data lives no longer than the test) and returns its URL.
func StartEtcd(ctx context.Context, dir string) (*Process, string, error) {
	ports, err := FreePorts(2)
	if err != nil {
		return nil, "", err
	}
	client := fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	p, err := startEtcdAt(ctx, dir, client, fmt.Sprintf("http://127.0.0.1:%d", ports[1]))
	return p, client, err
}

// startEtcdAt is [StartEtcd] with fixed URLs, for restarts.
func startEtcdAt(ctx context.Context, dir, client, peer string) (*Process, error) {
	path, err := StockBinary("etcd")
	if err != nil {
		return nil, err
	}
	p, err := Start(Command{Name: "etcd", Path: path, Dir: dir, Args: []string{
		"--data-dir=" + filepath.Join(dir, "etcd"),
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=default=" + peer,
		"--unsafe-no-fsync", "--log-level=warn",
	}})
	if err != nil {
		return nil, err
	}
	err = PollProcess(ctx, p, time.Minute, 50*time.Millisecond, func(ctx context.Context) error {
		return ExpectOK(ctx, http.DefaultClient, client+"/health")
	})
	if err != nil {
		p.Kill()
		return nil, err
	}
	return p, nil
}
