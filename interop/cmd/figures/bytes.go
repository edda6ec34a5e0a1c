package main

import (
	"context"
	"fmt"
	"time"

	"yurt.test/interop/harness"
)

const (
	// byteObjects is the number of Services and of EndpointSlices the pools read, byteEndpoints the size of a slice.
	byteObjects, byteEndpoints = 200, 10
	// byteUpdates is how many changes follow.
	byteUpdates = 200
)

// measureBytes prints the bytes that pools of 3 and of 30 hubs read from the cloud for the same data, TLS and heartbeats
// included.
func measureBytes(ctx context.Context, cloud *harness.Cloud) error {
	w, err := harness.NewWorkload(ctx, cloud.Client, "figures", 1, byteEndpoints)
	if err != nil {
		return err
	}
	if err := w.Fill(ctx, byteObjects); err != nil {
		return err
	}
	for _, hubs := range []int{3, 30} {
		if err := measurePool(ctx, cloud, w, hubs); err != nil {
			return err
		}
	}
	return nil
}

func measurePool(ctx context.Context, cloud *harness.Cloud, w *harness.Workload, hubs int) error {
	pool, err := cloud.StartPool(ctx, harness.PoolOptions{Name: fmt.Sprintf("bytes%d", hubs), Hubs: hubs})
	if err != nil {
		return err
	}
	defer pool.Stop()
	if _, err := pool.WaitLeader(ctx, waitLimit); err != nil {
		return err
	}
	mirrors, err := followAll(ctx, pool)
	defer func() {
		for _, m := range mirrors {
			m.Stop()
		}
	}()
	if err != nil {
		return err
	}
	what := fmt.Sprintf("bytes a pool of %d hubs reads from the cloud", hubs)
	started := pool.CloudBytes()
	row(fmt.Sprintf("%s: start and %d Services + %d slices", what, byteObjects, byteObjects), "%d KiB", started>>10)
	var last harness.Change
	for range byteUpdates {
		if last, err = w.Update(ctx); err != nil {
			return err
		}
	}
	err = harness.Poll(ctx, waitLimit, 20*time.Millisecond, func(context.Context) error {
		for _, m := range mirrors {
			object := m.Get(last.Resource, last.Key)
			if object == nil || object.GetResourceVersion() != last.ResourceVersion {
				return fmt.Errorf("%s has not seen the last update", m.Name)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	row(fmt.Sprintf("%s: %d updates of slices", what, byteUpdates), "%d KiB", (pool.CloudBytes()-started)>>10)
	return nil
}

// followAll puts one client with informers behind every hub.
func followAll(ctx context.Context, pool *harness.Pool) ([]*harness.Mirror, error) {
	var mirrors []*harness.Mirror
	for _, hub := range pool.Hubs {
		m, err := harness.StartMirror(harness.MirrorOptions{Name: hub.Node, Server: hub.Proxy(), UserAgent: harness.PlainAgent, Resources: harness.PoolScope})
		if err != nil {
			return mirrors, err
		}
		mirrors = append(mirrors, m)
	}
	for _, m := range mirrors {
		if err := m.WaitSynced(ctx, waitLimit); err != nil {
			return mirrors, err
		}
	}
	return mirrors, nil
}
