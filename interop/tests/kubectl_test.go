package tests

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// kubectlLimit bounds one call of kubectl.
const kubectlLimit = 60 * time.Second

// tableOfPeople is the output of kubectl get for one ConfigMap with one entry.
var tableOfPeople = regexp.MustCompile(`^NAME +DATA +AGE\npeople +1 +[0-9]+[smh]`)

// kubectl is the tool with one kubeconfig and its own home.
type kubectl struct {
	t          *testing.T
	binary     string
	kubeconfig string
	home       string
}

// checkKubectl tests an object's life cycle with interactive commands.
func checkKubectl(t *testing.T, binary, kubeconfig string) {
	k := kubectl{t: t, binary: binary, kubeconfig: kubeconfig, home: testDir(t)}
	k.run("version")
	for _, want := range []string{"configmaps", "leases", "services", "endpointslices"} {
		if out := k.run("api-resources"); !strings.Contains(out, want) {
			t.Errorf("api-resources lacks %s:\n%s", want, out)
		}
	}
	lines := k.watch("get", "configmaps", "--watch", "-o", "jsonpath={.metadata.name}={.data.k}{\"\\n\"}")
	k.create("people", "one")
	waitLine(t, lines, "people=one")
	if got := k.configMap("people").Data["k"]; got != "one" {
		t.Errorf("get gives %q after create", got)
	}
	k.run("patch", "configmap", "people", "--type=merge", "-p", `{"data":{"k":"two"}}`)
	waitLine(t, lines, "people=two")
	k.run("patch", "configmap", "people", "--type=json", "-p", `[{"op":"replace","path":"/data/k","value":"three"}]`)
	waitLine(t, lines, "people=three")
	k.run("label", "configmap", "people", "colour=blue")
	if out := k.run("get", "configmaps", "-l", "colour=blue", "-o", "name"); !strings.Contains(out, "configmap/people") {
		t.Errorf("get by label gives %q", out)
	}
	// A table of the server's: name, number of entries, age.
	if out := k.run("get", "configmap", "people"); !tableOfPeople.MatchString(out) {
		t.Errorf("get as a table gives %q", out)
	}
	if out := k.run("get", "configmap", "people", "-o", "yaml"); !strings.Contains(out, "k: three") {
		t.Errorf("get -o yaml gives %q", out)
	}
	// kubectl's own generators send protobuf.
	k.run("create", "configmap", "generated", "--from-literal=k=v")
	if got := k.configMap("generated").Data["k"]; got != "v" {
		t.Errorf("get gives %q after create configmap", got)
	}
	k.run("delete", "configmap", "generated")
	if out := k.run("auth", "whoami"); !strings.Contains(out, "Username") {
		t.Errorf("auth whoami gives %q", out)
	}
	k.create("from-file", "file")
	if got := k.configMap("from-file").Data["k"]; got != "file" {
		k.t.Errorf("get gives %q after create -f", got)
	}
	k.checkApply()
	k.run("delete", "configmap", "people", "from-file")
	if out, err := k.try("get", "configmap", "people"); err == nil || !strings.Contains(out, `configmaps "people" not found`) {
		t.Errorf("get after delete: %v, %q", err, out)
	}
}

// checkApply applies client-side, then server-side, then with another field manager, then client-side again.
func (k kubectl) checkApply() {
	k.t.Helper()
	apply := func(value string, args ...string) (string, error) {
		return k.try(append([]string{"apply", "-f", k.manifest("applied", value)}, args...)...)
	}
	want := func(value string, args ...string) {
		k.t.Helper()
		if out, err := apply(value, args...); err != nil {
			k.t.Fatalf("kubectl apply %v: %v\n%s", args, err, out)
		}
		if got := k.configMap("applied").Data["k"]; got != value {
			k.t.Errorf("get gives %q after apply %v of %q", got, args, value)
		}
	}
	want("one")
	want("two")
	// Fields of client-side apply are no conflict for server-side apply.
	want("three", "--server-side")
	other := []string{"--server-side", "--field-manager=other"}
	out, err := apply("four", other...)
	if err == nil || !strings.Contains(out, `conflict with "kubectl": .data.k`) {
		k.t.Errorf("apply by another manager: %v, %q", err, out)
	}
	want("four", append(other, "--force-conflicts")...)
	if out, err := apply("five", "--server-side"); err == nil || !strings.Contains(out, `conflict with "other": .data.k`) {
		k.t.Errorf("apply of another manager's fields: %v, %q", err, out)
	}
	want("six")
	fields := k.run("get", "configmap", "applied", "-o", "yaml", "--show-managed-fields")
	if !strings.Contains(fields, "manager: kubectl-client-side-apply") || !strings.Contains(fields, "operation: Update") {
		k.t.Errorf("who wrote last is not noted:\n%s", fields)
	}
	k.run("delete", "-f", k.manifest("applied", "six"))
}

// create uses -f, whose body is JSON, without reading the OpenAPI document.
func (k kubectl) create(name, value string) {
	k.t.Helper()
	k.run("create", "--validate=false", "-f", k.manifest(name, value))
}

// manifest writes a ConfigMap with one entry to a file.
func (k kubectl) manifest(name, value string) string {
	k.t.Helper()
	file := filepath.Join(k.home, name+".yaml")
	text := fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\ndata: {k: %q}\n", name, value)
	must(k.t, os.WriteFile(file, []byte(text), 0o644))
	return file
}

func (k kubectl) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, k.binary, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+k.kubeconfig, "HOME="+k.home)
	return cmd
}

// try returns stdout and stderr together.
func (k kubectl) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), kubectlLimit)
	defer cancel()
	out, err := k.command(ctx, args...).CombinedOutput()
	return string(out), err
}

func (k kubectl) run(args ...string) string {
	k.t.Helper()
	out, err := k.try(args...)
	if err != nil {
		k.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (k kubectl) configMap(name string) corev1.ConfigMap {
	k.t.Helper()
	var object corev1.ConfigMap
	out := k.run("get", "configmap", name, "-o", "json")
	if err := json.Unmarshal([]byte(out), &object); err != nil {
		k.t.Fatalf("kubectl get -o json: %v\n%s", err, out)
	}
	return object
}

// watch runs kubectl until the test ends and returns its output line by line.
func (k kubectl) watch(args ...string) <-chan string {
	k.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := k.command(ctx, args...)
	out, err := cmd.StdoutPipe()
	must(k.t, err)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	must(k.t, cmd.Start())
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		scan(out, lines)
	}()
	k.t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
		if k.t.Failed() && complaints.Len() > 0 {
			k.t.Logf("kubectl --watch: %s", complaints.String())
		}
	})
	return lines
}

func scan(out io.Reader, lines chan<- string) {
	scanner := bufio.NewScanner(out)
	for scanner.Scan() {
		lines <- scanner.Text()
	}
}

func waitLine(t *testing.T, lines <-chan string, want string) {
	t.Helper()
	limit := time.After(kubectlLimit)
	var seen []string
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				t.Fatalf("kubectl --watch ended before %q; it printed %q", want, seen)
			}
			if line == want {
				return
			}
			seen = append(seen, line)
		case <-limit:
			t.Fatalf("kubectl --watch did not print %q; it printed %q", want, seen)
		}
	}
}
