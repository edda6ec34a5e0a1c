package tests

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"yurt.test/interop/harness"
)

// readyLimit bounds the preparation of a test, so it is generous.
const readyLimit = 60 * time.Second

// workDir holds this run's data and logs; removed at the end unless a test failed.
var workDir string

var (
	cloudMu      sync.Mutex
	startedCloud *harness.Cloud // guarded by cloudMu
	cloudErr     error          // guarded by cloudMu; a cloud that did not start is not tried again
)

func TestMain(m *testing.M) {
	os.Exit(runAll(m))
}

func runAll(m *testing.M) int {
	dir, err := os.MkdirTemp("", "yurt-interop-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	workDir = dir
	code := m.Run()
	cloudMu.Lock()
	defer cloudMu.Unlock()
	if startedCloud != nil {
		if err := startedCloud.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stopping the cloud:", err)
			code = max(code, 1)
		}
	}
	if code != 0 {
		fmt.Fprintln(os.Stderr, "data and logs are kept in", dir)
		return code
	}
	_ = os.RemoveAll(dir)
	return code
}

// testContext ends with the test.
func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return ctx
}

// testDir is a folder for one test inside workDir.
func testDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(workDir, t.Name())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// sharedCloud starts the cloud on first use.
func sharedCloud(t *testing.T) *harness.Cloud {
	t.Helper()
	cloudMu.Lock()
	defer cloudMu.Unlock()
	if startedCloud == nil && cloudErr == nil {
		dir := filepath.Join(workDir, "cloud")
		if cloudErr = os.MkdirAll(dir, 0o755); cloudErr == nil {
			started := time.Now()
			startedCloud, cloudErr = harness.StartCloud(context.Background(), dir)
			t.Logf("cloud started in %s", time.Since(started).Round(time.Millisecond))
		}
	}
	if cloudErr != nil {
		t.Fatal(cloudErr)
	}
	return startedCloud
}

// startPool starts a pool that ends with the test, and prints its logs if the test failed.
func startPool(t *testing.T, cloud *harness.Cloud, options harness.PoolOptions) *harness.Pool {
	t.Helper()
	pool, err := cloud.StartPool(testContext(t), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(pool.Logs(25))
		}
		if err := pool.Stop(); err != nil {
			t.Errorf("stopping the pool: %v", err)
		}
	})
	return pool
}

// waitLeader waits until one hub leads and the others follow.
func waitLeader(t *testing.T, pool *harness.Pool) *harness.Hub {
	t.Helper()
	leader, err := pool.WaitLeader(testContext(t), readyLimit)
	if err != nil {
		t.Fatal(err)
	}
	return leader
}

// must ends the test on an error. In addition to the test's line that Helper prints, it prints the line of its caller.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		_, file, line, _ := runtime.Caller(1)
		t.Fatalf("(%s:%d) %v", filepath.Base(file), line, err)
	}
}
