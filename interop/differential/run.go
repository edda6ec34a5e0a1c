package differential

import (
	"context"
	"fmt"
	"sync"
)

// parallel is the number of scripts that play at a time.
const parallel = 16

// Pair are the two servers.
type Pair struct {
	Real, Ours *Server
}

// Run plays the scripts against both servers and returns every difference, in the order of the scripts.
func Run(ctx context.Context, pair Pair, scripts []Script, accepted AcceptedList) (*Report, error) {
	type outcome struct {
		differences []Difference
		err         error
	}
	outcomes := make([]outcome, len(scripts))
	var group sync.WaitGroup
	slots := make(chan struct{}, parallel)
	for i := range scripts {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			outcomes[i].differences, outcomes[i].err = playBoth(ctx, pair, &scripts[i])
		})
	}
	group.Wait()
	report := &Report{Scripts: len(scripts)}
	for i := range scripts {
		report.Requests += len(scripts[i].Steps)
		if err := outcomes[i].err; err != nil {
			return nil, fmt.Errorf("%s: %w", scripts[i].ID, err)
		}
		for _, d := range outcomes[i].differences {
			accepted.explain(&d)
			report.Differences = append(report.Differences, d)
		}
		if len(outcomes[i].differences) == 0 {
			report.Equal++
		}
	}
	return report, nil
}

// playBoth plays one script against both servers in parallel. A server that does not answer is a difference, too.
func playBoth(ctx context.Context, pair Pair, script *Script) ([]Difference, error) {
	var want, have []Answer
	var realErr, ourErr error
	var group sync.WaitGroup
	group.Go(func() { want, realErr = play(ctx, pair.Real, script) })
	group.Go(func() { have, ourErr = play(ctx, pair.Ours, script) })
	group.Wait()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if realErr != nil || ourErr != nil {
		d := Difference{Script: script.ID, Verb: script.Verb(), Field: "answer", Want: outcomeOf(realErr), Have: outcomeOf(ourErr)}
		return []Difference{d}, nil
	}
	return compare(script, pair.Real, pair.Ours, want, have), nil
}

func outcomeOf(err error) string {
	if err == nil {
		return "an answer"
	}
	return err.Error()
}
