package tests

import (
	"strings"
	"testing"

	"yurt.test/interop/differential"
)

// differentialShare is the share of the scripts in a test run: one in this many, always the same ones, which takes half
// a minute. `cargo xtask differential` plays all of them.
const differentialShare = 2

// TestDifferential plays requests against kube-apiserver and a standalone coordinator; every difference must be in
// accepted.txt, with the reason.
func TestDifferential(t *testing.T) {
	scripts, err := differential.Generate(1)
	must(t, err)
	scripts = differential.Share(scripts, differentialShare)
	servers, err := differential.StartServers(testContext(t), testDir(t), differential.Embedded)
	must(t, err)
	t.Cleanup(servers.Stop)
	accepted, err := differential.ParseAccepted()
	must(t, err)
	report, err := differential.Run(testContext(t), servers.Pair, scripts, accepted)
	must(t, err)
	judge(t, report)
	if report.Scripts < 2000 {
		t.Errorf("%d scripts are too few", report.Scripts)
	}
}

// TestAuthorizationCells compares the authorization decisions of kube-apiserver and the coordinator, with the same
// roles.
func TestAuthorizationCells(t *testing.T) {
	servers, err := differential.StartServers(testContext(t), testDir(t), differential.Embedded)
	must(t, err)
	t.Cleanup(servers.Stop)
	accepted, err := differential.ParseAccepted()
	must(t, err)
	cells := differential.Cells(1)
	if len(cells) < 10000 {
		t.Errorf("%d cells are too few", len(cells))
	}
	report, err := differential.RunCells(testContext(t), servers.Pair, cells, accepted)
	must(t, err)
	judge(t, report)
	if forbidden := report.Forbidden(); len(forbidden) > 0 {
		t.Errorf("%d cells are allowed here and denied there, first %s", len(forbidden), forbidden[0].Script)
	}
	for _, line := range accepted.For(true).Unused() {
		t.Errorf("accepted.txt:%d explains nothing any more, delete it: %s", line.Line, line.Text)
	}
}

func judge(t *testing.T, report *differential.Report) {
	t.Helper()
	var text strings.Builder
	report.Write(&text, 1, 40)
	t.Log(text.String())
	if n := len(report.Unexplained()); n > 0 {
		t.Errorf("%d differences without a reason", n)
	}
}
