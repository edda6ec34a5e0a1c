package tests

import (
	"testing"
	"time"

	"yurt.test/interop/harness"
)

// TestCloudRestarts restarts the cloud's parts under a pool, and compacts its history while the pool is offline, so
// that the leader must list. No informer behind a hub relists, and no deletion is lost.
// Conformance: 7.54
func TestCloudRestarts(t *testing.T) {
	cloud := ownCloud(t)
	s := newRollbackIn(t, cloud, harness.PoolOptions{Name: "restarts", Hubs: 2})
	ctx := testContext(t)
	steps := []struct {
		name string
		do   func(t *testing.T)
	}{
		{"APIServer", func(t *testing.T) {
			must(t, cloud.RestartAPIServer(ctx))
			s.put(t, "changed", "2")
			s.remove(t, "removed")
		}},
		{"Etcd", func(t *testing.T) {
			must(t, cloud.RestartEtcd(ctx))
			must(t, harness.Poll(ctx, readyLimit, 200*time.Millisecond, s.writable))
			s.put(t, "changed", "3")
			s.remove(t, "again")
		}},
		{"Compacted", func(t *testing.T) {
			s.goOffline(t)
			s.put(t, "changed", "4")
			s.put(t, "passing", "")
			s.put(t, "again", "")
			s.remove(t, "passing")
			s.remove(t, "kept")
			must(t, cloud.Compact(ctx))
			must(t, cloud.RestartAPIServer(ctx))
			mark, err := cloud.AuditMark()
			must(t, err)
			must(t, s.pool.ResumeCloud())
			for _, link := range s.links {
				must(t, link.Resume())
			}
			waitEqual(t, cloud, s.all(), rollbackLimit)
			requests, err := cloud.PoolRequests(mark, harness.ByNodes(s.pool.Name+"-"))
			must(t, err)
			lists := 0
			for _, request := range requests {
				// The proof reads one object.
				if request.Verb == "list" && request.Resource == "services" && request.Query.Get("limit") != "1" {
					lists++
				}
			}
			if lists == 0 {
				t.Errorf("no list of services: the history was not compacted, the run is inconclusive: %v", requests)
			}
		}},
	}
	for _, step := range steps {
		t.Run(step.name, func(t *testing.T) {
			began := time.Now()
			step.do(t)
			waitEqual(t, cloud, s.all(), rollbackLimit)
			for _, mirror := range s.all() {
				if reads := wholeReads(mirror, began); len(reads) > 0 {
					t.Errorf("%s: %d relists: %v; watch errors: %q", mirror.Name, len(reads), reads, mirror.WatchErrors())
				}
				for _, line := range mirror.Backwards() {
					t.Error("resourceVersion went backwards:", line)
				}
				for _, deleted := range mirror.Deletes() {
					if deleted.Guessed {
						t.Errorf("%s: the deletion of %s %s was not delivered but found by a relist", mirror.Name, deleted.Resource, deleted.Key)
					}
				}
			}
			if after := s.generation(t); after != s.was {
				t.Errorf("generation %s, want %s", after, s.was)
			}
		})
	}
}
