// Command figures measures both programs on this machine and prints a table: memory, the time from exec to ready, and
// the bytes that a pool reads from the cloud.
//
//	go run ./cmd/figures            everything, a few minutes
//	go run ./cmd/figures -only rss  one group: start, rss or bytes
//
// Build the stock programs first (go run ./cmd/build) and ours (cargo build --release), and set YURT_BIN_DIR to the
// folder with ours.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"yurt.test/interop/harness"
)

func main() {
	only := flag.String("only", "", "measure one group only: start, rss or bytes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *only); err != nil {
		fmt.Fprintln(os.Stderr, "figures:", err)
		os.Exit(1)
	}
}

// group is a set of figures that need the same preparation.
type group struct {
	name    string
	measure func(context.Context, *harness.Cloud) error
}

func run(ctx context.Context, only string) error {
	groups := []group{{"start", measureStart}, {"rss", measureMemory}, {"bytes", measureBytes}}
	known := only == ""
	for _, g := range groups {
		known = known || g.name == only
	}
	if !known {
		return fmt.Errorf("-only %s: no such group; there are start, rss and bytes", only)
	}
	fmt.Println("| what | value |")
	fmt.Println("|---|---|")
	for _, g := range groups {
		if only != "" && g.name != only {
			continue
		}
		if err := onOwnCloud(ctx, g); err != nil {
			return fmt.Errorf("%s: %w", g.name, err)
		}
	}
	return nil
}

// onOwnCloud gives a group a fresh cloud, so that groups do not affect each other.
func onOwnCloud(ctx context.Context, g group) error {
	dir, err := os.MkdirTemp("", "yurt-figures-")
	if err != nil {
		return err
	}
	cloud, err := harness.StartCloud(ctx, dir)
	if err != nil {
		return err
	}
	err = g.measure(ctx, cloud)
	if stopErr := cloud.Stop(); err == nil {
		err = stopErr
	}
	if err != nil {
		return fmt.Errorf("%w (logs are kept in %s)", err, filepath.Clean(dir))
	}
	return os.RemoveAll(dir)
}

// row prints one line of the table.
func row(what, format string, values ...any) {
	fmt.Printf("| %s | %s |\n", what, fmt.Sprintf(format, values...))
}
