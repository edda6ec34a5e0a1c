package main

import (
	"context"
	"fmt"
	"time"

	"yurt.test/interop/harness"
)

const (
	// waitLimit bounds every wait for something to become ready.
	waitLimit = 2 * time.Minute
	// memorySlices and memoryEndpoints are the size of the data set for memory.
	memorySlices, memoryEndpoints = 1000, 100
	// idleTime is the idle period before memory is read.
	idleTime = 5 * time.Second
)

// measureMemory prints the resident memory of both programs, idle and with 1,000 EndpointSlices of 100 endpoints.
func measureMemory(ctx context.Context, cloud *harness.Cloud) error {
	pool, err := cloud.StartPool(ctx, harness.PoolOptions{Name: "rss", Hubs: 2})
	if err != nil {
		return err
	}
	defer pool.Stop()
	leader, err := pool.WaitLeader(ctx, waitLimit)
	if err != nil {
		return err
	}
	if err := printMemory(ctx, pool, leader, "idle"); err != nil {
		return err
	}
	w, err := harness.NewWorkload(ctx, cloud.Client, "figures", 1, memoryEndpoints)
	if err != nil {
		return err
	}
	if err := w.Fill(ctx, memorySlices); err != nil {
		return err
	}
	if err := waitCounts(ctx, pool, memorySlices); err != nil {
		return err
	}
	return printMemory(ctx, pool, leader, fmt.Sprintf("%d slices of %d endpoints", memorySlices, memoryEndpoints))
}

func printMemory(ctx context.Context, pool *harness.Pool, leader *harness.Hub, when string) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(idleTime):
	}
	for _, p := range []struct {
		name    string
		process *harness.Process
	}{
		{"yurt-coordinator", pool.Coordinator.Process},
		{"yurthub, leader", leader.Process},
		{"yurthub, follower", pool.Others(leader)[0].Process},
	} {
		rss, err := p.process.RSS()
		if err != nil {
			return err
		}
		row("RSS of "+p.name+", "+when, "%.1f MiB", float64(rss)/(1<<20))
	}
	return nil
}

// waitCounts lists through the coordinator and every hub until each has at least this many slices. That also makes
// every hub hold them.
func waitCounts(ctx context.Context, pool *harness.Pool, slices int) error {
	readers := map[string]harness.Kubeconfig{"coordinator": pool.Coordinator.Admin}
	for _, hub := range pool.Hubs {
		readers[hub.Node] = hub.Proxy()
	}
	for name, reader := range readers {
		err := harness.Poll(ctx, waitLimit, 200*time.Millisecond, func(ctx context.Context) error {
			n, err := harness.Count(ctx, reader, harness.EndpointSlices)
			if err == nil && n < slices {
				err = fmt.Errorf("%s lists %d of %d slices", name, n, slices)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
