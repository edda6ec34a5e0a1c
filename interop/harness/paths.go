package harness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// CacheDir is the folder of built binaries, relative to the interop folder.
const CacheDir = ".cache"

// moduleLine is the first line of the go.mod of this module; it identifies the interop folder.
const moduleLine = "module yurt.test/interop\n"

// InteropDir finds the interop folder: the working directory or the nearest parent with this module.
func InteropDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), moduleLine) {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("not inside the interop folder: run this from interop/ or below")
		}
		dir = parent
	}
}

// StockBinary is the path of a binary that cmd/build builds.
func StockBinary(name string) (string, error) {
	root, err := InteropDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, CacheDir, "bin", name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s is not built: run `go run ./cmd/build` in interop/ (%w)", name, err)
	}
	return path, nil
}

// YurtBinary is the path of one of our binaries: in $YURT_BIN_DIR, or in the output of
// `cargo build --profile quick --features yurt-hub-client/failpoints`.
func YurtBinary(name string) (string, error) {
	dir := os.Getenv("YURT_BIN_DIR")
	if dir == "" {
		root, err := InteropDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(root, "..", "target", "quick")
	}
	path, err := filepath.Abs(filepath.Join(dir, name))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s is not built: run `cargo build --profile quick --features yurt-hub-client/failpoints` or set YURT_BIN_DIR (%w)", name, err)
	}
	return path, nil
}
