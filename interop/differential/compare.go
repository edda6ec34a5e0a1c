package differential

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Difference is one field that differs between the two responses to one step.
type Difference struct {
	// Script is the script's id.
	Script string
	// Verb is the script's family.
	Verb string
	// Step is the index of the step.
	Step int
	// Field is the path.
	Field string
	// Want is kube-apiserver's value, "-" if it has none.
	Want string
	// Have is ours, "-" if there is none.
	Have string
	// Reason is the reason of an accepted difference; empty for an unexplained one.
	Reason string
}

// nothing represents a field that one side lacks.
const nothing = "-"

// valueMax is the length of a value in reports and matches.
const valueMax = 240

// String is the text that patterns of the accepted list match.
func (d Difference) String() string {
	return fmt.Sprintf("%s: %s -> %s", d.Field, clip(d.Want), clip(d.Have))
}

func clip(s string) string {
	if len(s) > valueMax {
		return s[:valueMax] + "…"
	}
	return s
}

var index = regexp.MustCompile(`\[\d+\]`)

// Group is the field without indices, the key for grouping differences.
func (d Difference) Group() string { return index.ReplaceAllString(d.Field, "[]") }

// compare compares the responses of both servers to one script.
func compare(script *Script, real, ours *Server, want, have []Answer) []Difference {
	realView, ourView := newNormaliser(real, script), newNormaliser(ours, script)
	var differences []Difference
	for i := range script.Steps {
		wantView, haveView := realView.view(&want[i]), ourView.view(&have[i])
		whole := i == len(script.Steps)-1 || script.Steps[i].Compare
		add := func(field string, w, h any) {
			differences = append(differences, Difference{Script: script.ID, Verb: script.Verb(), Step: i, Field: field, Want: show(w), Have: show(h)})
		}
		if wantView["status"] != haveView["status"] {
			// Everything else follows from it; the message contains its subject.
			field := "status"
			if !whole {
				field = "setup.status"
			}
			add(field, withMessage(wantView), withMessage(haveView))
			return differences
		}
		if whole {
			walk("", wantView, haveView, add)
		}
	}
	return differences
}

// withMessage is the status with the message of a Status body.
func withMessage(view map[string]any) string {
	status := fmt.Sprint(view["status"])
	if message, ok := lookup(view["body"], "message").(string); ok {
		return status + " " + message
	}
	if body, ok := view["body"].(string); ok {
		return status + " " + body
	}
	return status
}

// absent is the value of a field that one side lacks.
type absent struct{}

// show formats a value on one line.
func show(value any) string {
	switch value := value.(type) {
	case absent:
		return nothing
	case string:
		return strings.NewReplacer("\n", `\n`, "\t", `\t`).Replace(value)
	default:
		return text(value)
	}
}

// walk reports the differences of two normalised values, down to the depth that both share. Lists of different lengths
// are one difference, and so are different lists of plain values.
func walk(path string, want, have any, add func(field string, want, have any)) {
	wantMap, isMap := want.(map[string]any)
	haveMap, alsoMap := have.(map[string]any)
	if isMap && alsoMap {
		walkMaps(path, wantMap, haveMap, add)
		return
	}
	wantList, isList := want.([]any)
	haveList, alsoList := have.([]any)
	switch {
	case !isList || !alsoList:
		if !reflect.DeepEqual(want, have) {
			add(path, want, have)
		}
	case len(wantList) != len(haveList):
		if isPlain(wantList) && isPlain(haveList) {
			add(path, want, have)
		} else {
			add(path+".length", summary(wantList), summary(haveList))
		}
	case isPlain(wantList) && isPlain(haveList):
		if !reflect.DeepEqual(want, have) {
			add(path, want, have)
		}
	default:
		for i := range wantList {
			walk(fmt.Sprintf("%s[%d]", path, i), wantList[i], haveList[i], add)
		}
	}
}

func walkMaps(path string, want, have map[string]any, add func(field string, want, have any)) {
	below := func(key string) string { return strings.TrimPrefix(path+"."+key, ".") }
	for key, w := range sorted(want) {
		if h, ok := have[key]; ok {
			walk(below(key), w, h, add)
		} else {
			add(below(key), w, absent{})
		}
	}
	for key, h := range sorted(have) {
		if _, ok := want[key]; !ok {
			add(below(key), absent{}, h)
		}
	}
}

// isPlain reports whether a list holds neither objects nor lists.
func isPlain(list []any) bool {
	return !slices.ContainsFunc(list, func(element any) bool {
		switch element.(type) {
		case map[string]any, []any:
			return true
		}
		return false
	})
}

// summary is the length of a list with the names of its elements.
func summary(list []any) string {
	out := strconv.Itoa(len(list))
	for _, element := range list {
		for _, path := range [][]string{{"type"}, {"name"}, {"metadata", "name"}, {"reason"}, {"message"}} {
			if name, ok := lookup(element, path...).(string); ok {
				out += " " + name
				break
			}
		}
	}
	return out
}
