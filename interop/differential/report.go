package differential

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Report is the outcome of a run.
type Report struct {
	// Scripts is the number of played scripts.
	Scripts int
	// Requests is the number of their requests, on each server.
	Requests int
	// Equal is the number of scripts without any difference.
	Equal int
	// Differences are all differences, explained or not.
	Differences []Difference
}

// Unexplained are the differences without a reason.
func (r *Report) Unexplained() []Difference {
	return slices.DeleteFunc(slices.Clone(r.Differences), func(d Difference) bool { return d.Reason != "" })
}

// group is one line of the summary.
type group struct {
	owner, verb, field string
	count              int
	example            Difference
	resources          map[string]bool
}

// Write prints totals, the unexplained differences grouped, and the command that replays one script.
func (r *Report) Write(out io.Writer, seed uint64, limit int) {
	unexplained := r.Unexplained()
	fmt.Fprintf(out, "%d scripts, %d requests each: %d scripts equal, %d differences, %d of them without a reason (seed %d)\n",
		r.Scripts, r.Requests, r.Equal, len(r.Differences), len(unexplained), seed)
	groups := groupDifferences(unexplained)
	for i, g := range groups {
		if i == limit {
			fmt.Fprintf(out, "... and %d more groups\n", len(groups)-limit)
			break
		}
		fmt.Fprintf(out, "%5d× [%s] %s %s (%s)\n       want %s\n       have %s\n       %s\n", g.count, g.owner, g.verb, g.field,
			strings.Join(slices.Collect(keys(g.resources)), " "), clip(g.example.Want), clip(g.example.Have), replay(g.example.Script, seed))
	}
}

// replay is the command that plays one script alone.
func replay(id string, seed uint64) string {
	return fmt.Sprintf("cargo xtask differential --seed %d --case '%s'", seed, id)
}

func groupDifferences(differences []Difference) []*group {
	known := map[string]*group{}
	for _, d := range differences {
		key := d.Verb + " " + d.Group()
		if d.Field == "status" || d.Field == "setup.status" {
			key += " " + firstWord(d.Want) + " " + firstWord(d.Have)
		}
		g := known[key]
		if g == nil {
			g = &group{owner: owner(d), verb: d.Verb, field: d.Group(), example: d, resources: map[string]bool{}}
			known[key] = g
		}
		g.count++
		if parts := strings.Split(d.Script, "/"); len(parts) > 2 {
			g.resources[parts[1]] = true
		}
	}
	groups := make([]*group, 0, len(known))
	for _, g := range sorted(known) {
		groups = append(groups, g)
	}
	slices.SortStableFunc(groups, func(a, b *group) int { return cmp.Compare(b.count, a.count) })
	return groups
}

func firstWord(s string) string {
	word, _, _ := strings.Cut(s, " ")
	return word
}

// owner is the part of the server that most likely causes a difference.
func owner(d Difference) string {
	id := d.Script
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(id, part) })
	}
	switch {
	case has("protobuf", "-pb", "client-go", "table", "kubectl", "partial", "yaml", "/accept", "/body/", "include-object"):
		return "formats"
	case has("managedFields") || strings.Contains(d.Field, "managedFields"), strings.HasPrefix(id, "apply/"), strings.HasPrefix(id, "patch/"), has("strategic"):
		return "patch"
	case strings.HasPrefix(id, "as/"), strings.HasPrefix(id, "review/"), has("impersonate"):
		return "identity"
	case strings.HasPrefix(id, "list/"), strings.HasPrefix(id, "watch/"):
		return "lists"
	case strings.HasPrefix(id, "discovery/"), strings.HasPrefix(id, "path/"):
		return "discovery"
	case has("/with/"), strings.HasPrefix(d.Field, "body.spec"), strings.HasPrefix(d.Field, "body.status"), has("named/"), strings.HasPrefix(id, "status/"):
		return "kinds"
	default:
		return "other"
	}
}
