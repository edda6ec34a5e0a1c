package tests

import (
	"strings"
	"testing"

	"yurt.test/interop/differential"
)

// differentialShare is how much of the scripts a test run plays: one in this many, always the same ones. `cargo xtask
// differential` plays all of them.
const differentialShare = 3

// TestDifferential plays requests against kube-apiserver and a standalone coordinator; what they answer differently has
// to be in accepted.txt, with the reason.
func TestDifferential(t *testing.T) {
	scripts, err := differential.Generate(1)
	must(t, err)
	scripts = differential.Share(scripts, differentialShare)
	servers, err := differential.StartServers(testContext(t), testDir(t), false)
	must(t, err)
	t.Cleanup(servers.Stop)
	accepted, err := differential.ParseAccepted()
	must(t, err)
	report, err := differential.Run(testContext(t), servers.Pair, scripts, accepted)
	must(t, err)
	var text strings.Builder
	report.Write(&text, 1, 40)
	t.Log(text.String())
	if n := len(report.Unexplained()); n > 0 {
		t.Errorf("%d differences without a reason", n)
	}
	if report.Scripts < 2000 {
		t.Errorf("%d scripts are too few", report.Scripts)
	}
}
