package tests

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"yurt.test/interop/harness"
)

// reloadLimit bounds the wait for a reload of the folder, which happens every 10 s.
const reloadLimit = 60 * time.Second

// tableOfWidgets is the output of kubectl get for one ready Widget.
var tableOfWidgets = regexp.MustCompile(`^NAME +COLOR +READY +AGE\nround +red +True +[0-9]+[smh]`)

const roundWidget = `apiVersion: example.com/v1
kind: Widget
metadata: {name: round}
spec: {color: red}
`

// TestKubectlCustomResources declares a kind in a file while the coordinator runs, and uses it with kubectl.
// Conformance: 1.08
func TestKubectlCustomResources(t *testing.T) {
	kinds := testDir(t)
	coordinator := standalone(t, "--custom-resources-path="+kinds)
	k := kubectl{t: t, binary: "kubectl", kubeconfig: coordinator.AdminFile, home: testDir(t)}
	if out, err := k.try("get", "widgets"); err == nil || !strings.Contains(out, "the server doesn't have a resource type") {
		t.Errorf("get of an undeclared kind: %v, %q", err, out)
	}
	example, err := os.ReadFile("../../manifests/custom-resource-example.yaml")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(kinds, "widgets.yaml"), example, 0o644))
	must(t, harness.Poll(testContext(t), reloadLimit, time.Second, func(context.Context) error {
		if out := k.run("api-resources", "--cached=false", "-o", "name"); !strings.Contains(out, "widgets.example.com") {
			return errors.New("api-resources lacks widgets")
		}
		return nil
	}))
	checkWidgets(t, k)
	must(t, os.Remove(filepath.Join(kinds, "widgets.yaml")))
	must(t, harness.Poll(testContext(t), reloadLimit, time.Second, func(context.Context) error {
		if _, err := k.try("get", "--raw", "/apis/example.com/v1/widgets"); err == nil {
			return errors.New("widgets are still there")
		}
		return nil
	}))
	if out := k.run("api-resources", "--cached=false", "-o", "name"); strings.Contains(out, "widgets") {
		t.Errorf("api-resources shows a kind that is gone:\n%s", out)
	}
}

// checkWidgets tests the life cycle of a custom resource.
func checkWidgets(t *testing.T, k kubectl) {
	t.Helper()
	lines := k.watch("get", "wd", "--watch", "-o", "jsonpath={.metadata.name}={.spec.color}{\"\\n\"}")
	file := filepath.Join(k.home, "round.yaml")
	must(t, os.WriteFile(file, []byte(roundWidget), 0o644))
	k.run("apply", "-f", file)
	waitLine(t, lines, "round=red")
	k.run("patch", "widget", "round", "--subresource=status", "--type=merge",
		"-p", `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`)
	if out := k.run("get", "widgets"); !tableOfWidgets.MatchString(out) {
		t.Errorf("get as a table gives %q", out)
	}
	k.run("wait", "widget/round", "--for=condition=Ready", "--timeout=10s")
	for _, selector := range []string{"--field-selector=spec.color=red", "--field-selector=spec.color!=blue"} {
		if out := k.run("get", "widgets", selector, "-o", "name"); strings.TrimSpace(out) != "widget.example.com/round" {
			t.Errorf("get %s gives %q", selector, out)
		}
	}
	if out := k.run("get", "all"); !strings.Contains(out, "widget.example.com/round") {
		t.Errorf("get all gives %q", out)
	}
	if out := k.run("explain", "widget.spec"); !strings.Contains(out, "Color of the widget.") {
		t.Errorf("explain widget.spec gives %q", out)
	}
	if out := k.run("explain", "widget.metadata"); !strings.Contains(out, "labels") {
		t.Errorf("explain widget.metadata gives %q", out)
	}
	must(t, os.WriteFile(file, []byte(strings.ReplaceAll(roundWidget, "red", "blue")), 0o644))
	k.run("apply", "-f", file)
	waitLine(t, lines, "round=blue")
	k.run("apply", "--server-side", "--force-conflicts", "-f", file)
	k.run("label", "wd", "round", "size=big")
	if out := k.run("get", "wd", "-l", "size=big", "-o", "yaml"); !strings.Contains(out, "color: blue") {
		t.Errorf("get -o yaml gives %q", out)
	}
	k.run("describe", "widget", "round")
	k.run("delete", "widget", "round", "--wait")
}
