package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"yurt.test/interop/harness"
)

// badStartLimit is the time in which a program must detect that it cannot start.
const badStartLimit = 30 * time.Second

// badStart is one faulty command line.
type badStart struct {
	name string
	// change edits a good set of flags: "--flag=value" replaces or adds, "-flag" (one dash) removes.
	change []string
	// says is the required text in the one line on stderr: the flag, path, port or reason that the operator has to
	// check.
	says string
}

// badFiles are files and sockets of the table.
type badFiles struct {
	dir       string
	missing   string // does not exist
	notPEM    string // exists with invalid content
	file      string // a plain file where a folder is wanted
	otherCert string // a serving certificate of an unknown CA
	otherKey  string // its key
	busyPort  int    // has a listener
}

// TestBadStart starts both programs with faulty flags and expects exactly one clear line on stderr, a non-zero exit,
// and no files left behind. It needs no cloud.
func TestBadStart(t *testing.T) {
	files := makeBadFiles(t)
	t.Run("yurt-coordinator", func(t *testing.T) {
		_, err := harness.YurtBinary("yurt-coordinator")
		must(t, err)
		good := goodCoordinator(t, files)
		for _, c := range coordinatorBadStarts(files) {
			t.Run(c.name, func(t *testing.T) { checkBadStart(t, "yurt-coordinator", files, good, c) })
		}
	})
	t.Run("yurthub", func(t *testing.T) {
		_, err := harness.YurtBinary("yurthub")
		must(t, err)
		good := goodHub(t, files)
		for _, c := range hubBadStarts(t, files) {
			t.Run(c.name, func(t *testing.T) { checkBadStart(t, "yurthub", files, good, c) })
		}
	})
}

func coordinatorBadStarts(f badFiles) []badStart {
	return []badStart{
		{"UnknownFlag", []string{"--no-such-flag=1"}, "--no-such-flag"},
		{"PortNotANumber", []string{"--secure-port=https"}, "--secure-port"},
		{"PortOutOfRange", []string{"--secure-port=70000"}, "--secure-port"},
		{"AddressNotAnIP", []string{"--bind-address=somewhere"}, "--bind-address"},
		{"UnknownProfile", []string{"--profile=palace"}, "--profile"},
		{"PortInUse", []string{fmt.Sprintf("--secure-port=%d", f.busyPort)}, fmt.Sprint(f.busyPort)},
		{"DataDirIsAFile", []string{"--data-dir=" + f.file}, f.file},
		{"DataDirBelowAFile", []string{"--data-dir=" + filepath.Join(f.file, "data")}, f.file},
		{"MissingClientCA", []string{"--client-ca-file=" + f.missing}, f.missing},
		{"ClientCAIsNoPEM", []string{"--client-ca-file=" + f.notPEM}, f.notPEM},
		{"MissingCertificate", []string{"--tls-cert-file=" + f.missing}, f.missing},
		{"MissingKey", []string{"--tls-private-key-file=" + f.missing}, f.missing},
		{"CertificateWithoutKey", []string{"-tls-private-key-file"}, "--tls-private-key-file"},
		{"KeyOfAnotherCertificate", []string{"--tls-private-key-file=" + f.otherKey}, f.otherKey},
	}
}

func hubBadStarts(t *testing.T, f badFiles) []badStart {
	t.Helper()
	return []badStart{
		{"UnknownFlag", []string{"--no-such-flag=1"}, "--no-such-flag"},
		{"NoNodeName", []string{"-node-name"}, "--node-name"},
		{"NoServer", []string{"-server-addr"}, "--server-addr"},
		{"ServerWithoutTLS", []string{"--server-addr=http://127.0.0.1:1"}, "--server-addr"},
		{"PortNotANumber", []string{"--proxy-port=x"}, "--proxy-port"},
		{"ProxyPortInUse", []string{fmt.Sprintf("--proxy-port=%d", f.busyPort)}, fmt.Sprint(f.busyPort)},
		{"ServePortInUse", []string{fmt.Sprintf("--serve-port=%d", f.busyPort)}, fmt.Sprint(f.busyPort)},
		{"SecurePortInUse", []string{fmt.Sprintf("--proxy-secure-port=%d", f.busyPort)}, fmt.Sprint(f.busyPort)},
		{"MissingKubeconfig", []string{"--kubeconfig=" + f.missing}, f.missing},
		{"KubeconfigIsNonsense", []string{"--kubeconfig=" + f.notPEM}, f.notPEM},
		{"MissingDelegateKubeconfig", []string{"--delegate-kubeconfig=" + f.missing}, f.missing},
		{"MissingCoordinatorCA", []string{"--coordinator-ca-file=" + f.missing}, f.missing},
		{"RootDirIsAFile", []string{"--root-dir=" + f.file}, f.file},
		{"CacheDirIsAFile", []string{"--disk-cache-path=" + f.file}, f.file},
		{"LeaseInFractions", []string{"--leader-elect-lease-duration=1500ms"}, "--leader-elect-lease-duration"},
		{"RenewDeadlineTooLong", []string{"--leader-elect-renew-deadline=20s"}, "--leader-elect-renew-deadline"},
		{"CertificateOfAnotherCA", strictServer(t, f), "certificate"},
		{"ServerOfAnotherCA", []string{"--server-addr=" + foreignServer(t, f)}, "certificate"},
	}
}

// goodCoordinator are valid flags.
func goodCoordinator(t *testing.T, f badFiles) map[string]string {
	t.Helper()
	ca, err := harness.NewCA("good")
	must(t, err)
	cloud := &harness.Cloud{CA: ca, CAFile: filepath.Join(f.dir, "good-ca.crt")}
	must(t, os.WriteFile(cloud.CAFile, ca.CertPEM, 0o644))
	port, err := harness.FreePort()
	must(t, err)
	args, err := cloud.CoordinatorArgs(f.dir, port, "bad")
	must(t, err)
	return flagMap(args)
}

// goodHub are valid flags: the cloud need not be reachable.
func goodHub(t *testing.T, f badFiles) map[string]string {
	t.Helper()
	ca, err := harness.NewCA("good")
	must(t, err)
	cloud := &harness.Cloud{CA: ca}
	ports, err := harness.FreePorts(5)
	must(t, err)
	server := fmt.Sprintf("https://127.0.0.1:%d", ports[4])
	args, err := cloud.HubArgs(harness.HubFlags{Node: "bad-0", Pool: "bad", Dir: f.dir, Server: server,
		Coordinator: fmt.Sprintf("https://127.0.0.1:%d", ports[3]), ProxyPort: ports[0], SecurePort: ports[1], ServePort: ports[2]})
	must(t, err)
	return flagMap(args)
}

func flagMap(args []string) map[string]string {
	flags := map[string]string{}
	for _, arg := range args {
		name, value, _ := strings.Cut(arg, "=")
		flags[name] = value
	}
	return flags
}

func makeBadFiles(t *testing.T) badFiles {
	t.Helper()
	dir := testDir(t)
	f := badFiles{dir: dir, missing: filepath.Join(dir, "missing"), notPEM: filepath.Join(dir, "nonsense"), file: filepath.Join(dir, "file")}
	must(t, os.WriteFile(f.notPEM, []byte("not: [what, was, asked for\n"), 0o644))
	must(t, os.WriteFile(f.file, nil, 0o644))
	ca, err := harness.NewCA("other")
	must(t, err)
	serving, err := ca.IssueServer("other", "127.0.0.1")
	must(t, err)
	f.otherCert, f.otherKey, err = serving.Write(dir, "other")
	must(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	f.busyPort = listener.Addr().(*net.TCPAddr).Port
	return f
}

// checkBadStart runs the program and checks its end.
func checkBadStart(t *testing.T, program string, f badFiles, good map[string]string, c badStart) {
	path, err := harness.YurtBinary(program)
	must(t, err)
	args := applyChange(good, c.change)
	before := tree(t, f.dir)
	ctx, cancel := context.WithTimeout(context.Background(), badStartLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = f.dir
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		t.Fatalf("still running after %s; stderr: %s", badStartLimit, stderr.String())
	case err == nil:
		t.Fatalf("exit code 0; stderr: %s", stderr.String())
	case !errors.As(err, &exit) || exit.ExitCode() <= 0:
		t.Fatalf("ended by %v, not by an exit code; stderr: %s", err, stderr.String())
	}
	lines := strings.Split(strings.TrimRight(stderr.String(), "\n"), "\n")
	if len(lines) != 1 || lines[0] == "" {
		t.Errorf("%d lines on stderr, want 1:\n%s", len(lines), stderr.String())
	}
	if !strings.Contains(stderr.String(), c.says) {
		t.Errorf("the message does not mention %q: %s", c.says, stderr.String())
	}
	if stdout.Len() > 0 {
		t.Errorf("something on stdout: %s", stdout.String())
	}
	for file := range tree(t, f.dir) {
		if !before[file] && !isAllowedLeftover(file) {
			t.Errorf("left behind: %s", file)
		}
	}
}

// isAllowedLeftover accepts folders that the flags name: the program may create them.
func isAllowedLeftover(file string) bool {
	info, err := os.Stat(file)
	return err == nil && info.IsDir()
}

func applyChange(good map[string]string, change []string) []string {
	flags := map[string]string{}
	for name, value := range good {
		flags[name] = value
	}
	for _, edit := range change {
		name, value, set := strings.Cut(edit, "=")
		if !set && !strings.HasPrefix(edit, "--") {
			delete(flags, "-"+edit)
			continue
		}
		flags[name] = value
	}
	var args []string
	for name, value := range flags {
		args = append(args, name+"="+value)
	}
	return args
}

// tree is every path below dir.
func tree(t *testing.T, dir string) map[string]bool {
	t.Helper()
	paths := map[string]bool{}
	must(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		paths[path] = true
		return err
	}))
	return paths
}
