// Command differential plays the scripts of package differential against kube-apiserver and yurt-coordinator and prints
// the differences. It exits with 1 when a difference has no reason in accepted.txt, or a line there explains nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	"yurt.test/interop/differential"
)

// options are the flags.
type options struct {
	seed   uint64
	one    string
	share  uint
	groups int
	twice  bool
	etcd   bool
	list   bool
	cells  bool
	out    string
}

func main() {
	var o options
	flag.Uint64Var(&o.seed, "seed", 1, "of the sampled scripts")
	flag.StringVar(&o.one, "case", "", "play only scripts whose id begins with this, and print every difference")
	flag.UintVar(&o.share, "share", 1, "play one script in this many, always the same ones")
	flag.IntVar(&o.groups, "groups", 60, "how many groups of unexplained differences to print")
	flag.BoolVar(&o.twice, "twice", false, "compare kube-apiserver with a second kube-apiserver: checks the comparison itself")
	flag.BoolVar(&o.etcd, "etcd", false, "give the coordinator an etcd instead of its own store")
	flag.BoolVar(&o.list, "list", false, "print the ids and play nothing")
	flag.BoolVar(&o.cells, "cells", false, "compare the authorization cells instead of playing scripts")
	flag.StringVar(&o.out, "out", "", "also write every difference to this file, one per line with its reason")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "differential:", err)
		os.Exit(1)
	}
}

func (o options) against() differential.Against {
	switch {
	case o.twice:
		return differential.Itself
	case o.etcd:
		return differential.Etcd
	default:
		return differential.Embedded
	}
}

func run(o options) error {
	scripts, err := differential.Generate(o.seed)
	if err != nil {
		return err
	}
	if o.one != "" && !o.cells {
		scripts = slices.DeleteFunc(scripts, func(s differential.Script) bool { return !strings.HasPrefix(s.ID, o.one) })
	}
	scripts = differential.Share(scripts, uint32(o.share))
	if len(scripts) == 0 {
		return fmt.Errorf("no script begins with %q (sampled ones depend on the seed)", o.one)
	}
	if o.list {
		for _, script := range scripts {
			fmt.Println(script.ID)
		}
		return nil
	}
	dir, err := os.MkdirTemp("", "yurt-differential-")
	if err != nil {
		return err
	}
	ctx := context.Background()
	servers, err := differential.StartServers(ctx, dir, o.against())
	if err != nil {
		return fmt.Errorf("%w (logs in %s)", err, dir)
	}
	defer os.RemoveAll(dir)
	defer servers.Stop()
	accepted, err := differential.ParseAccepted()
	if err != nil {
		return err
	}
	if o.twice {
		accepted = nil
	}
	report, err := play(ctx, o, servers.Pair, scripts, accepted)
	if err != nil {
		return err
	}
	if err := write(o, report); err != nil {
		return err
	}
	report.Write(os.Stdout, o.seed, o.groups)
	// Some lines are for the embedded store alone: runs over etcd do not check for unused lines.
	return verdict(report, accepted.For(o.cells), o.one == "" && o.share == 1 && !o.etcd)
}

// play plays the scripts or the cells.
func play(ctx context.Context, o options, pair differential.Pair, scripts []differential.Script, accepted differential.AcceptedList) (*differential.Report, error) {
	if !o.cells {
		return differential.Run(ctx, pair, scripts, accepted)
	}
	cells := differential.Cells(o.seed)
	if o.one != "" {
		cells = slices.DeleteFunc(cells, func(c differential.Cell) bool { return !strings.HasPrefix(c.ID(), o.one) })
	}
	return differential.RunCells(ctx, pair, cells, accepted)
}

// write prints the differences one by one if requested.
func write(o options, report *differential.Report) error {
	var lines strings.Builder
	for _, d := range report.Differences {
		fmt.Fprintf(&lines, "%s\t%d\t%s\t%s\n", d.Script, d.Step, d, d.Reason)
	}
	if o.one != "" {
		fmt.Print(lines.String())
	}
	if o.out == "" {
		return nil
	}
	return os.WriteFile(o.out, []byte(lines.String()), 0o644)
}

// verdict returns an error for unexplained differences. Only whole runs check for unused lines.
func verdict(report *differential.Report, accepted differential.AcceptedList, whole bool) error {
	var failed []error
	if n := len(report.Unexplained()); n > 0 {
		failed = append(failed, fmt.Errorf("%d differences without a reason", n))
	}
	if whole {
		for _, line := range accepted.Unused() {
			failed = append(failed, fmt.Errorf("accepted.txt:%d explains nothing any more, delete it: %s", line.Line, line.Text))
		}
	}
	return errors.Join(failed...)
}
