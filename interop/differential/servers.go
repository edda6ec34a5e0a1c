package differential

import (
	"context"
	"os"
	"path/filepath"

	"yurt.test/interop/harness"
)

// apiServerFlags disable features that a coordinator lacks: the admission plugins that modify pods and nodes for a
// scheduler and for service accounts. They also disable the fairness that would answer a burst of scripts with 429.
var apiServerFlags = []string{
	"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition,Priority,DefaultTolerationSeconds,PodTopologyLabels",
	"--allow-privileged=true", "--enable-priority-and-fairness=false", "--max-requests-inflight=0", "--max-mutating-requests-inflight=0",
}

// Servers are the two programs with their dependencies.
type Servers struct {
	// Pair is the access to both.
	Pair Pair

	stops []func() error
}

// Against is the server that kube-apiserver is compared with.
type Against int

// The servers that kube-apiserver can be compared with.
const (
	// Embedded is a coordinator on its own store.
	Embedded Against = iota
	// Etcd is a coordinator on an etcd of its own.
	Etcd
	// Itself is a second kube-apiserver, which reveals errors of the comparison itself.
	Itself
)

// StartServers starts kube-apiserver with its etcd, and the server to compare.
func StartServers(ctx context.Context, dir string, against Against) (*Servers, error) {
	s := &Servers{}
	first, err := s.startCloud(ctx, filepath.Join(dir, "cloud"))
	if err != nil {
		return nil, s.fail(err)
	}
	if s.Pair.Real, err = NewServer("kube-apiserver", first.URL, first.CA); err != nil {
		return nil, s.fail(err)
	}
	if against == Itself {
		second, err := s.startCloud(ctx, filepath.Join(dir, "second"))
		if err != nil {
			return nil, s.fail(err)
		}
		if s.Pair.Ours, err = NewServer("kube-apiserver again", second.URL, second.CA); err != nil {
			return nil, s.fail(err)
		}
		return s, nil
	}
	ours := filepath.Join(dir, "ours")
	if err := os.MkdirAll(ours, 0o755); err != nil {
		return nil, s.fail(err)
	}
	flags, err := coordinatorFlags(ours)
	if err != nil {
		return nil, s.fail(err)
	}
	flags = append(flags, first.TokenFlags()...)
	if against == Etcd {
		etcd, url, err := harness.StartEtcd(ctx, ours)
		if err != nil {
			return nil, s.fail(err)
		}
		s.stops = append(s.stops, etcd.Stop)
		flags = append(flags, "--etcd-servers="+url)
	}
	coordinator, err := first.StartStandalone(ctx, ours, flags...)
	if err != nil {
		return nil, s.fail(err)
	}
	s.stops = append(s.stops, coordinator.Process.Stop)
	if s.Pair.Ours, err = NewServer("yurt-coordinator", coordinator.URL, first.CA); err != nil {
		return nil, s.fail(err)
	}
	return s, nil
}

// coordinatorFlags writes the coordinator's files.
func coordinatorFlags(dir string) ([]string, error) {
	rules := filepath.Join(dir, "rbac.yaml")
	return []string{"--rbac-path=" + rules}, os.WriteFile(rules, RBAC, 0o644)
}

func (s *Servers) startCloud(ctx context.Context, dir string) (*harness.Cloud, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	cloud, err := harness.StartCloud(ctx, dir, apiServerFlags...)
	if err != nil {
		return nil, err
	}
	s.stops = append(s.stops, cloud.Stop)
	return cloud, cloud.Apply(ctx, RBAC)
}

func (s *Servers) fail(err error) error {
	s.Stop()
	return err
}

// Stop ends everything, last started first. Its result does not matter.
func (s *Servers) Stop() {
	for i := len(s.stops) - 1; i >= 0; i-- {
		_ = s.stops[i]()
	}
}
