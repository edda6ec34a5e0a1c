// Command build builds the stock binaries that act as the cloud in the tests: etcd, kube-apiserver,
// kube-controller-manager, kubemark's hollow-node, kubectl and CoreDNS.
//
// They are ordinary Go module dependencies of the wrapper modules, so no download other than the module proxy's is
// needed. A binary is rebuilt only when its stamp (wrapper sources, go.mod, go.sum, Go version, flags) differs from the
// stored one.
//
//	go run ./cmd/build            build the missing or stale binaries
//	go run ./cmd/build -check     list the stale binaries without a build; exit 1 if there are any
//	go run ./cmd/build -print     print the directory with the binaries
//	go run ./cmd/build -peers     the same for OpenYurt's hubs and a reverse proxy, which only `cargo xtask bench-hub` uses
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"yurt.test/interop/harness"
)

func main() {
	check := flag.Bool("check", false, "list the missing or stale binaries without a build; exit 1 if there are any")
	show := flag.Bool("print", false, "print the directory with the binaries and exit")
	peers := flag.Bool("peers", false, "build the programs that a hub is compared with, instead")
	jobs := flag.Int("p", min(4, runtime.NumCPU()), "compile at most this many packages at a time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *check, *show, selected(*peers), *jobs); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}

// run executes the flags' mode and returns the first failure.
func run(ctx context.Context, check, show bool, targets []target, jobs int) error {
	root, err := harness.InteropDir()
	if err != nil {
		return err
	}
	binDir := filepath.Join(root, harness.CacheDir, "bin")
	if show {
		fmt.Println(binDir)
		return nil
	}
	if check {
		return report(ctx, root, binDir, targets)
	}
	if err := os.MkdirAll(binDir, 0o755); err != nil {
		return err
	}
	lock, err := lockCache(binDir)
	if err != nil {
		return err
	}
	defer lock.Close()
	stale, err := staleTargets(ctx, root, binDir, targets)
	if err != nil {
		return err
	}
	started := time.Now()
	for i, t := range stale {
		fmt.Printf("build: [%d/%d] %s\n", i+1, len(stale), t.target.name)
		if err := t.build(ctx, jobs); err != nil {
			return err
		}
	}
	if len(stale) == 0 {
		fmt.Printf("build: %d binaries in %s are up to date\n", len(targets), binDir)
	} else {
		fmt.Printf("build: done in %s\n", time.Since(started).Round(time.Second))
	}
	return nil
}

// report prints the stale binaries and returns an error if there are any.
func report(ctx context.Context, root, binDir string, targets []target) error {
	stale, err := staleTargets(ctx, root, binDir, targets)
	if err != nil {
		return err
	}
	for _, t := range stale {
		fmt.Println(t.target.name)
	}
	if len(stale) > 0 {
		return fmt.Errorf("%d of %d binaries are missing or stale; run: go run ./cmd/build", len(stale), len(targets))
	}
	return nil
}
