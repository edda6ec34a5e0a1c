package differential

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// cellCount is the number of cells in a run: at least ten thousand of all possible ones.
const cellCount = 12000

// Cell is one authorization question: subject, verb and object.
type Cell struct {
	User   subject
	Verb   string
	Path   string // of a non-resource request; the rest is empty then
	Group  string
	Kind   string // the plural
	Sub    string
	Name   string
	Space  string // the namespace
	fields bool   // with the field selector of the node's own objects
}

// subject is a user with groups.
type subject struct {
	name   string
	groups []string
}

var subjects = []subject{
	{"interop-admin", []string{"system:masters", "system:authenticated"}},
	{"viewer", []string{"viewers", "system:authenticated"}},
	{"editor", []string{"editors", "system:authenticated"}},
	{"stranger", []string{"strangers", "system:authenticated"}},
	{"viewer", []string{"system:authenticated"}},
	{"system:node:" + nodeName, []string{"system:nodes", "system:authenticated"}},
	{"system:node:other", []string{"system:nodes", "system:authenticated"}},
	{"system:node:" + nodeName, []string{"system:authenticated"}},
	{"system:node:", []string{"system:nodes", "system:authenticated"}},
	{"plain", []string{"system:nodes", "system:authenticated"}},
	{"system:serviceaccount:default:robot", []string{"system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"}},
	{"system:serviceaccount:other:robot", []string{"system:serviceaccounts", "system:serviceaccounts:other", "system:authenticated"}},
	{"system:anonymous", []string{"system:unauthenticated"}},
	{"system:kube-proxy", []string{"system:authenticated"}},
	{"system:kube-scheduler", []string{"system:authenticated"}},
	{"system:kube-controller-manager", []string{"system:authenticated"}},
	{"system:apiserver", []string{"system:authenticated"}},
	{"system:bootstrap:abc", []string{"system:bootstrappers", "system:authenticated"}},
	{"monitor", []string{"system:monitoring", "system:authenticated"}},
	{"nobody", nil},
}

var (
	cellVerbs = []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "impersonate", "bind", "escalate", "*", "GET"}
	cellKinds = [][2]string{
		{"", "configmaps"}, {"", "secrets"}, {"", "services"}, {"", "endpoints"}, {"", "pods"}, {"", "events"}, {"", "namespaces"}, {"", "serviceaccounts"}, {"", "nodes"},
		{"coordination.k8s.io", "leases"}, {"discovery.k8s.io", "endpointslices"}, {"events.k8s.io", "events"}, {"storage.k8s.io", "csinodes"}, {"node.k8s.io", "runtimeclasses"},
		{"authentication.k8s.io", "tokenreviews"}, {"authorization.k8s.io", "subjectaccessreviews"}, {"authorization.k8s.io", "selfsubjectaccessreviews"},
		{"authentication.k8s.io", "selfsubjectreviews"}, {"rbac.authorization.k8s.io", "clusterroles"}, {"apps", "deployments"}, {"apps.openyurt.io", "nodepools"}, {"", "*"}, {"*", "*"},
		{"", "persistentvolumeclaims"}, {"certificates.k8s.io", "certificatesigningrequests"}, {"", "users"}, {"networking.k8s.io", "servicecidrs"}, {"coordination.k8s.io", "pods"},
	}
	cellSubs   = []string{"", "", "", "status", "token", "finalize", "proxy", "eviction"}
	cellNames  = []string{"", "one", "two", "three", nodeName, "other", "named-node", "robot", "bound"}
	cellSpaces = []string{"", "default", "kube-system", "kube-node-lease", "other"}
	cellPaths  = []string{"/healthz", "/healthz/ping", "/livez", "/readyz", "/version", "/version/", "/metrics", "/metrics/x", "/openapi/v2", "/openapi/v3/api/v1", "/api", "/api/v1", "/apis", "/apis/", "/", "/logs", "/debug/pprof", "/.well-known/openid-configuration", "/openid/v1/jwks", "/yurt/v1/feed"}
)

// ID names the cell in the accepted list.
func (c Cell) ID() string {
	who := c.User.name + "(" + strings.Join(c.User.groups, ",") + ")"
	if c.Path != "" {
		return fmt.Sprintf("cell/%s/%s %s", who, c.Verb, c.Path)
	}
	id := fmt.Sprintf("cell/%s/%s %s.%s/%s name=%s in=%s", who, c.Verb, c.Kind, c.Group, c.Sub, c.Name, c.Space)
	if c.fields {
		id += " own-fields"
	}
	return id
}

// Cells returns the cells of a seed: every kind and path once for each subject with every verb, the rest at random.
func Cells(seed uint64) []Cell {
	var cells []Cell
	seen := map[string]bool{}
	add := func(c Cell) {
		if id := c.ID(); !seen[id] {
			seen[id] = true
			cells = append(cells, c)
		}
	}
	for _, user := range subjects {
		for _, path := range cellPaths {
			add(Cell{User: user, Verb: "get", Path: path})
			add(Cell{User: user, Verb: "post", Path: path})
		}
		for _, verb := range cellVerbs {
			for _, k := range cellKinds {
				add(Cell{User: user, Verb: verb, Group: k[0], Kind: k[1]})
			}
		}
	}
	random := rand.New(rand.NewPCG(seed, 2))
	for len(cells) < cellCount {
		k := pick(random, cellKinds)
		add(Cell{User: pick(random, subjects), Verb: pick(random, cellVerbs), Group: k[0], Kind: k[1], Sub: pick(random, cellSubs),
			Name: pick(random, cellNames), Space: pick(random, cellSpaces), fields: random.IntN(8) == 0})
	}
	return cells
}

// review is the SubjectAccessReview of a cell.
func (c Cell) review() string {
	spec := map[string]any{"user": c.User.name, "groups": c.User.groups}
	if c.Path != "" {
		spec["nonResourceAttributes"] = map[string]any{"verb": c.Verb, "path": c.Path}
	} else {
		attributes := map[string]any{"verb": c.Verb, "group": c.Group, "version": "v1", "resource": c.Kind, "subresource": c.Sub, "name": c.Name, "namespace": c.Space}
		if c.fields {
			field := map[string]string{"pods": "spec.nodeName", "nodes": "metadata.name"}[c.Kind]
			if field == "" {
				field = "metadata.name"
			}
			attributes["fieldSelector"] = map[string]any{"requirements": []any{map[string]any{"key": field, "operator": "In", "values": []string{nodeName}}}}
		}
		spec["resourceAttributes"] = attributes
	}
	return text(map[string]any{"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec})
}

// cellObjects are the inputs of the Node authorizer: a node, and a pod on it that names a secret, a config map and a
// service account.
var cellObjects = []Step{
	{Method: http.MethodPost, Path: "/api/v1/nodes", ContentType: jsonType, Body: `{"metadata":{"name":"` + nodeName + `"}}`},
	{Method: http.MethodPost, Path: "/api/v1/namespaces/default/serviceaccounts", ContentType: jsonType, Body: `{"metadata":{"name":"robot"}}`},
	{Method: http.MethodPost, Path: "/api/v1/namespaces/default/secrets", ContentType: jsonType, Body: `{"metadata":{"name":"one"}}`},
	{Method: http.MethodPost, Path: "/api/v1/namespaces/default/configmaps", ContentType: jsonType, Body: `{"metadata":{"name":"one"}}`},
	{Method: http.MethodPost, Path: "/api/v1/namespaces/default/pods", ContentType: jsonType, Body: `{"metadata":{"name":"bound"},"spec":{"nodeName":"` + nodeName + `","serviceAccountName":"robot","automountServiceAccountToken":false,` +
		`"containers":[{"name":"c","image":"i","envFrom":[{"configMapRef":{"name":"one"}}]}],"volumes":[{"name":"s","secret":{"secretName":"one"}}]}}`},
}

// RunCells sends every cell to both servers.
func RunCells(ctx context.Context, pair Pair, cells []Cell, accepted AcceptedList) (*Report, error) {
	for _, server := range []*Server{pair.Real, pair.Ours} {
		answers, err := play(ctx, server, &Script{ID: "cells", Steps: cellObjects})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", server.Name, err)
		}
		for i, answer := range answers {
			if answer.Status != http.StatusCreated {
				return nil, fmt.Errorf("%s: %s: status %d: %v", server.Name, cellObjects[i].Path, answer.Status, answer.Body)
			}
		}
	}
	report := &Report{Scripts: len(cells), Requests: len(cells)}
	differences := make([]*Difference, len(cells))
	errs := make([]error, len(cells))
	var group sync.WaitGroup
	slots := make(chan struct{}, parallel)
	for i, cell := range cells {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			differences[i], errs[i] = askCell(ctx, pair, cell)
		})
	}
	group.Wait()
	for i, d := range differences {
		switch {
		case errs[i] != nil:
			return nil, fmt.Errorf("%s: %w", cells[i].ID(), errs[i])
		case d == nil:
			report.Equal++
		default:
			if d.Have != "true" { // no reason excuses a right that kube-apiserver denies
				accepted.explain(d)
			}
			report.Differences = append(report.Differences, *d)
		}
	}
	return report, nil
}

// askCell returns nil if both servers agree.
func askCell(ctx context.Context, pair Pair, cell Cell) (*Difference, error) {
	script := Script{ID: cell.ID(), Steps: []Step{{Method: http.MethodPost, Path: "/apis/authorization.k8s.io/v1/subjectaccessreviews", ContentType: jsonType, Body: cell.review()}}}
	said := make([]string, 2)
	for i, server := range []*Server{pair.Real, pair.Ours} {
		answers, err := play(ctx, server, &script)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", server.Name, err)
		}
		said[i] = fmt.Sprint(answers[0].Status)
		if allowed, ok := lookup(answers[0].Body, "status", "allowed").(bool); ok {
			said[i] = fmt.Sprint(allowed)
		}
	}
	if said[0] == said[1] {
		return nil, nil
	}
	return &Difference{Script: script.ID, Verb: "cell", Field: "allowed", Want: said[0], Have: said[1]}, nil
}

// Forbidden returns the inexplicable differences: we allow what kube-apiserver denies.
func (r *Report) Forbidden() []Difference {
	return slices.DeleteFunc(slices.Clone(r.Differences), func(d Difference) bool { return d.Verb != "cell" || d.Have != "true" })
}
