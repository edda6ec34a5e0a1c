package harness

import (
	"context"
	"fmt"
	"time"
)

// Poll calls check every interval until it returns nil, and returns its last error after limit. A loaded machine
// extends the limit, see [Pace].
func Poll(ctx context.Context, limit, interval time.Duration, check func(context.Context) error) error {
	started, pace := time.Now(), StartPace()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var last error
	for {
		bounded, cancel := context.WithDeadline(ctx, started.Add(max(time.Since(started)+interval, pace.Limit(limit))))
		err := check(bounded)
		isCut := bounded.Err() != nil
		cancel()
		if err == nil {
			return nil
		}
		// A check that the deadline interrupts returns no useful error; the previous one is kept.
		if last == nil || !isCut {
			last = err
		}
		if ctx.Err() != nil || !pace.Allows(limit) {
			return fmt.Errorf("not within %s: %w", time.Since(started).Round(time.Millisecond), last)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("ended after %s: %w", time.Since(started).Round(time.Millisecond), last)
		case <-ticker.C:
		}
	}
}

// PollProcess is [Poll] that fails immediately, with the tail of the process's log, when the process ends.
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
