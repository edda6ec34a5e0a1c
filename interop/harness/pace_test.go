package harness

import (
	"testing"
	"time"
)

func TestLimitsAreStretchedByTheLoadAndNotForEver(t *testing.T) {
	const limit = 2 * time.Second
	for _, c := range []struct {
		sum, count float64
		want       time.Duration
	}{
		{0, 0, limit},           // no sample yet
		{0.5 * 40, 40, limit},   // an idle machine extends nothing
		{40, 40, limit},         // one task for each CPU
		{3 * 40, 40, 3 * limit}, // each task has a third of a CPU
		{1000, 1, 10 * limit},
	} {
		if got := stretched(limit, c.sum, c.count); got != c.want {
			t.Errorf("%g tasks at %g looks: %s, want %s", c.sum, c.count, got, c.want)
		}
	}
}

func TestTasksAreCountedWithoutWhoeverAsks(t *testing.T) {
	for text, want := range map[string]int{"0.20 0.18 0.12 2/80 11206\n": 1, "19 3 1 0/80 1": 0, "": 0, "a b c d": 0} {
		if got := tasksIn([]byte(text)); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
