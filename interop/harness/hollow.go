package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// hollowRoot finds the folder of a hollow kubelet in its log. The kubelet creates it in /tmp, regardless of TMPDIR, and
// leaves it there.
var hollowRoot = regexp.MustCompile(`Using (/tmp/hollow-kubelet\.[0-9]+) as root dir`)

// hollowArgs are the flags of kubemark's hollow-node. Its image service must be the fake one: the default looks for
// a container runtime's socket on this machine.
func hollowArgs(morph, node, kubeconfig string, port int) []string {
	return []string{
		"--morph=" + morph, "--name=" + node, "--kubeconfig=" + kubeconfig,
		"--use-host-image-service=false",
		fmt.Sprintf("--kubelet-port=%d", port), "--kubelet-read-only-port=0",
	}
}

// StartHollow starts kubemark's hollow kubelet or proxy ("kubelet", "proxy") for a node against a kubeconfig. It ends
// with the cloud, or by calling the returned function.
func (c *Cloud) StartHollow(morph, node string, server Kubeconfig) (*Process, func(), error) {
	port, err := FreePort()
	if err != nil {
		return nil, nil, err
	}
	return c.startHollowAt(morph, node, server, port)
}

// startHollowAt is [Cloud.StartHollow] with a port for the kubelet.
func (c *Cloud) startHollowAt(morph, node string, server Kubeconfig, port int) (*Process, func(), error) {
	path, err := StockBinary("hollow-node")
	if err != nil {
		return nil, nil, err
	}
	kubeconfig := filepath.Join(c.Dir, node+"-"+morph+".kubeconfig")
	if err := server.Write(kubeconfig); err != nil {
		return nil, nil, err
	}
	p, err := Start(Command{Name: node + "-hollow-" + morph, Path: path, Dir: c.Dir, Args: hollowArgs(morph, node, kubeconfig, port)})
	if err != nil {
		return nil, nil, err
	}
	stop := func() {
		p.Kill()
		removeSockets(p.StartedAt)
		if log, err := os.ReadFile(p.LogPath); err == nil {
			for _, match := range hollowRoot.FindAllSubmatch(log, -1) {
				_ = os.RemoveAll(string(match[1]))
			}
		}
	}
	c.onStop(stop)
	return p, stop, nil
}

// removeSockets removes the socket files that hollow kubelets have left in /tmp since the given time: their fake
// container runtime never removes them. Sockets with a listener stay.
func removeSockets(since time.Time) {
	paths, _ := filepath.Glob("/tmp/kubelet_remote_*.sock")
	table, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		if err == nil && info.ModTime().After(since) && !strings.Contains(string(table), path) {
			_ = os.Remove(path)
		}
	}
}
