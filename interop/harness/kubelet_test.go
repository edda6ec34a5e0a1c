package harness

import (
	"testing"
	"time"
)

func TestBeatsAreCountedFromTheOneThatTheCloudHas(t *testing.T) {
	first := time.Unix(100, 1_234) // the cloud keeps microseconds
	kubelet := &Kubelet{renewals: []time.Time{first, first.Add(RenewInterval), first.Add(2 * RenewInterval)}}
	for renewed, want := range map[time.Time]int{
		first.Add(-RenewInterval):        3,
		first.Truncate(time.Microsecond): 2,
		first.Add(RenewInterval + 1):     1,
		first.Add(2*RenewInterval + 1):   0,
		first.Add(9 * RenewInterval):     0,
	} {
		if got := BeatsSince(kubelet.Renewals(), renewed); got != want {
			t.Errorf("%s: %d, want %d", renewed, got, want)
		}
	}
}
