package tests

import (
	"testing"

	"yurt.test/interop/harness"
)

// checkOneListOneWatch asserts from the cloud's audit log that all nodes whose names begin with prefix together loaded
// each pool-scope resource once and watched it once. A second watch may only follow one that ended by its timeout.
func checkOneListOneWatch(t *testing.T, cloud *harness.Cloud, mark harness.AuditMark, prefix string) {
	t.Helper()
	for _, gvr := range harness.PoolScope {
		resource := gvr.GroupResource().String()
		requests, err := cloud.PoolRequests(mark, func(r harness.AuditRequest) bool {
			return r.Resource == resource && harness.ByNodes(prefix)(r)
		})
		must(t, err)
		var loads, watches []harness.AuditRequest
		for _, request := range requests {
			if request.IsInitialLoad() {
				loads = append(loads, request)
			}
			if request.Verb == "watch" {
				watches = append(watches, request)
			}
		}
		if len(loads) != 1 {
			t.Errorf("the cloud saw %d complete reads of %s, want 1: %v", len(loads), resource, requests)
		}
		if len(watches) == 0 {
			t.Errorf("the cloud saw no watch of %s: %v", resource, requests)
		}
		for i := 1; i < len(watches); i++ {
			if !watches[i-1].EndedByTimeout() || watches[i].Received.Before(watches[i-1].Ended) {
				t.Errorf("the cloud saw a second watch of %s although the first had not ended by its timeout: %v", resource, watches)
			}
		}
	}
}

// checkNoLoadBy asserts that one node has not loaded any pool-scope resource from the cloud since mark.
func checkNoLoadBy(t *testing.T, cloud *harness.Cloud, mark harness.AuditMark, node string) {
	t.Helper()
	for _, gvr := range harness.PoolScope {
		resource := gvr.GroupResource().String()
		loads, err := cloud.PoolRequests(mark, func(r harness.AuditRequest) bool {
			return r.Resource == resource && r.User == "system:node:"+node && r.IsInitialLoad()
		})
		must(t, err)
		if len(loads) > 0 {
			t.Errorf("%s loaded %s from the cloud: %v", node, resource, loads)
		}
	}
}
