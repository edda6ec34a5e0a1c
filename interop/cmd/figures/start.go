package main

import (
	"context"
	"net/http"
	"slices"
	"time"

	"yurt.test/interop/harness"
)

// startRuns is the number of runs of each start; the median is printed.
const startRuns = 7

// measureStart prints the time from exec to the first 200 of /readyz, for the coordinator and for the hub's health
// port. Both start with the data of an earlier run on disk.
func measureStart(ctx context.Context, cloud *harness.Cloud) error {
	pool, err := cloud.StartPool(ctx, harness.PoolOptions{Name: "start", Hubs: 1})
	if err != nil {
		return err
	}
	defer pool.Stop()
	if _, err := pool.WaitLeader(ctx, waitLimit); err != nil {
		return err
	}
	coordinator, err := timeStarts(ctx, pool.Coordinator.Restart)
	if err != nil {
		return err
	}
	row("yurt-coordinator, exec to /readyz", "%s", coordinator)
	hub := pool.Hubs[0]
	ready, err := timeStarts(ctx, func(ctx context.Context) (time.Duration, error) {
		if err := hub.Process.Stop(); err != nil {
			return 0, err
		}
		if err := hub.Start(ctx); err != nil {
			return 0, err
		}
		err := harness.PollProcess(ctx, hub.Process, waitLimit, time.Millisecond, func(ctx context.Context) error {
			return harness.ExpectOK(ctx, http.DefaultClient, hub.AdminURL()+"/readyz")
		})
		return time.Since(hub.Process.StartedAt), err
	})
	if err != nil {
		return err
	}
	row("yurthub, exec to /readyz", "%s", ready)
	return nil
}

// timeStarts returns the median of several starts.
func timeStarts(ctx context.Context, start func(context.Context) (time.Duration, error)) (time.Duration, error) {
	var times []time.Duration
	for range startRuns {
		took, err := start(ctx)
		if err != nil {
			return 0, err
		}
		times = append(times, took)
	}
	slices.Sort(times)
	return times[len(times)/2].Round(100 * time.Microsecond), nil
}
