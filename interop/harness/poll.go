package harness

import (
	"context"
	"fmt"
	"time"
)

// Poll calls check every interval until it returns nil, and after limit gives up with its last error.
func Poll(ctx context.Context, limit, interval time.Duration, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		// The check that the deadline cuts short says nothing about what was wrong until then.
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %w", limit, last)
		case <-ticker.C:
		}
	}
}

// PollProcess is [Poll] that gives up at once, with the tail of its log, when the process ends.
func PollProcess(ctx context.Context, p *Process, limit, interval time.Duration, check func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-p.Exited():
			cancel()
		case <-ctx.Done():
		}
	}()
	err := Poll(ctx, limit, interval, check)
	if err == nil {
		return nil
	}
	if !p.Running() {
		return fmt.Errorf("%s ended: %v\n--- tail of %s\n%s", p.Name, p.err, p.LogPath, p.Tail(25))
	}
	return fmt.Errorf("%s: %w\n--- tail of %s\n%s", p.Name, err, p.LogPath, p.Tail(25))
}
