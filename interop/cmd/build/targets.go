package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// target is one stock binary: package cmd/<name> of the wrapper module in folder module.
type target struct {
	name   string
	module string
	// versionOf is the module whose version is stamped into the binary; empty if the binary contains its version.
	versionOf string
}

// targets in build order: the quick one first.
var targets = []target{
	{name: "etcd", module: "etcd"},
	{name: "kube-apiserver", module: "k8s", versionOf: "k8s.io/kubernetes"},
	{name: "kube-controller-manager", module: "k8s", versionOf: "k8s.io/kubernetes"},
	{name: "hollow-node", module: "k8s", versionOf: "k8s.io/kubernetes"},
	{name: "kube-proxy", module: "k8s", versionOf: "k8s.io/kubernetes"},
	{name: "kubectl", module: "kubectl", versionOf: "k8s.io/kubectl"},
	{name: "coredns", module: "coredns"},
}

// peers are what our hub is compared with.
var peers = []target{
	{name: "pass-through", module: "."},
	{name: "yurthub-1.7.0", module: "openyurt-1.7.0"},
	{name: "yurthub-1.5.1", module: "openyurt-1.5.1"},
}

// selected returns the targets of this run.
func selected(isPeers bool) []target {
	if isPeers {
		return peers
	}
	return targets
}

// staleTarget is a target that needs a build, with its new stamp.
type staleTarget struct {
	target  target
	dir     string // folder of the wrapper module
	output  string
	stamp   string
	ldflags string
}

// staleTargets compares every target's stamp with the stored one.
func staleTargets(ctx context.Context, root, binDir string, targets []target) ([]staleTarget, error) {
	goVersion, err := exec.CommandContext(ctx, "go", "env", "GOVERSION", "GOOS", "GOARCH").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w (is Go on PATH?)", err)
	}
	var stale []staleTarget
	for _, t := range targets {
		dir := filepath.Join(root, t.module)
		ldflags, err := t.ldflags(dir)
		if err != nil {
			return nil, err
		}
		stamp, err := stampOf(dir, t.name, string(goVersion), ldflags)
		if err != nil {
			return nil, err
		}
		output := filepath.Join(binDir, t.name)
		if isFresh(output, stamp) {
			continue
		}
		stale = append(stale, staleTarget{target: t, dir: dir, output: output, stamp: stamp, ldflags: ldflags})
	}
	return stale, nil
}

// isFresh reports whether the binary exists and has this stamp.
func isFresh(output, stamp string) bool {
	have, err := os.ReadFile(output + ".stamp")
	if err != nil || string(have) != stamp {
		return false
	}
	info, err := os.Stat(output)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// ldflags strips the binary and stamps the version Kubernetes' own build would stamp.
func (t target) ldflags(dir string) (string, error) {
	flags := []string{"-s", "-w"}
	if t.versionOf == "" {
		return strings.Join(flags, " "), nil
	}
	version, err := requiredVersion(filepath.Join(dir, "go.mod"), t.versionOf)
	if err != nil {
		return "", err
	}
	// Kubernetes publishes its v1.x libraries as v0.x.
	if rest, isLibrary := strings.CutPrefix(version, "v0."); isLibrary {
		version = "v1." + rest
	}
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) != 3 {
		return "", fmt.Errorf("%s: version %q of %s is not v<major>.<minor>.<patch>", dir, version, t.versionOf)
	}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, kv := range []string{"gitVersion=" + version, "gitMajor=" + parts[0], "gitMinor=" + parts[1], "gitTreeState=clean"} {
			flags = append(flags, "-X", pkg+"."+kv)
		}
	}
	return strings.Join(flags, " "), nil
}

// requiredVersion reads the version of one required module from a go.mod.
func requiredVersion(goMod, module string) (string, error) {
	text, err := os.ReadFile(goMod)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(fields) >= 2 && fields[0] == module && strings.HasPrefix(fields[1], "v") {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("%s does not require %s", goMod, module)
}

// stampOf hashes all inputs of the binary: toolchain, flags, go.mod, go.sum and the wrapper's sources.
func stampOf(dir, name, goVersion, ldflags string) (string, error) {
	hash := sha256.New()
	fmt.Fprintf(hash, "%s\x00%s\x00%s\x00", name, goVersion, ldflags)
	files := []string{filepath.Join(dir, "go.mod"), filepath.Join(dir, "go.sum")}
	sources := filepath.Join(dir, "cmd", name)
	err := filepath.WalkDir(sources, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	slices.Sort(files)
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		rel, err := filepath.Rel(dir, file)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(hash, "%s\x00%d\x00", rel, len(content))
		hash.Write(content)
	}
	return hex.EncodeToString(hash.Sum(nil)) + "\n", nil
}

// build compiles the target, puts it in place in one step and writes its stamp last.
func (s staleTarget) build(ctx context.Context, jobs int) error {
	started := time.Now()
	scratch := s.output + ".new"
	args := []string{"build", "-p", fmt.Sprint(jobs), "-buildvcs=false", "-trimpath", "-ldflags", s.ldflags, "-o", scratch, "./cmd/" + s.target.name}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	done := make(chan error, 1)
	go func() { done <- cmd.Run() }()
	tick := time.NewTicker(15 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			fmt.Printf("build: %s, %s so far\n", s.target.name, time.Since(started).Round(time.Second))
			continue
		case err := <-done:
			if err != nil {
				_ = os.Remove(scratch)
				return fmt.Errorf("%s: go build in %s: %w\n%s", s.target.name, s.dir, err, output.String())
			}
		}
		break
	}
	_ = os.Remove(s.output + ".stamp")
	if err := os.Rename(scratch, s.output); err != nil {
		return err
	}
	if err := os.WriteFile(s.output+".stamp", []byte(s.stamp), 0o644); err != nil {
		return err
	}
	info, err := os.Stat(s.output)
	if err != nil {
		return err
	}
	fmt.Printf("build: %s, %d MiB, in %s\n", s.target.name, info.Size()>>20, time.Since(started).Round(time.Second))
	return nil
}
