package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Python returns an interpreter with this package: a virtual environment in the cache, created on first use.
func Python(ctx context.Context, requirement string) (string, error) {
	root, err := InteropDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, CacheDir, "python")
	python, stamp := filepath.Join(dir, "bin", "python"), filepath.Join(dir, "stamp")
	if have, err := os.ReadFile(stamp); err == nil && string(have) == requirement {
		return python, nil
	}
	for _, args := range [][]string{
		{"python3", "-m", "venv", "--clear", dir},
		{python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement},
	} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%v: %w\n%s", args, err, out)
		}
	}
	return python, os.WriteFile(stamp, []byte(requirement), 0o644)
}
