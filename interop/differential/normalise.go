package differential

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// normaliser replaces values that differ between any two servers by comparable ones. A resourceVersion or uid becomes
// its ordinal within this script, and a time that no client sent becomes "now".
type normaliser struct {
	script *Script
	sent   string // everything the script sends: times in it are compared as they are
	server string // host:port
	rvs    map[string]string
	uids   map[string]string
	newest uint64 // the newest resourceVersion of an object seen in this script
}

func newNormaliser(server *Server, script *Script) *normaliser {
	var sent strings.Builder
	var note func(Step)
	note = func(step Step) {
		sent.WriteString(step.Body)
		if step.Watch != nil {
			for _, during := range step.Watch.During {
				note(during)
			}
		}
	}
	for _, step := range script.Steps {
		note(step)
	}
	return &normaliser{script: script, sent: sent.String(), server: strings.TrimPrefix(server.URL, "https://"), rvs: map[string]string{}, uids: map[string]string{}}
}

// comparedHeaders are the headers clients act on. ETag is compared by being there.
var comparedHeaders = []string{"Content-Type", "Warning", "Retry-After", "Vary", "Content-Encoding", "X-Content-Type-Options", "Allow", "Cache-Control", "Www-Authenticate", "Location"}

// view is a comparable response: its values by the name of a difference.
func (n *normaliser) view(answer *Answer) map[string]any {
	out := map[string]any{"status": strconv.Itoa(answer.Status)}
	headers := map[string]any{}
	for _, name := range comparedHeaders {
		if values := answer.Header.Values(name); len(values) > 0 {
			headers[name] = n.text(strings.Join(values, " | "))
		}
	}
	if answer.Header.Get("Etag") != "" {
		headers["Etag"] = "present"
	}
	out["header"] = headers
	if answer.Format != "" {
		out["format"] = answer.Format
	}
	if answer.Body != nil {
		out["body"] = n.value("", answer.Body)
	}
	if answer.Events != nil || answer.Ended {
		out["ended"] = answer.Ended
		out["event"] = n.value("", slices.DeleteFunc(slices.Clone(answer.Events), isTimed))
	}
	var during []any
	for i := range answer.During {
		during = append(during, strconv.Itoa(answer.During[i].Status))
	}
	if during != nil {
		out["during"] = during
	}
	return out
}

// value normalises one JSON value; parent is the key of its container.
func (n *normaliser) value(parent string, value any) any {
	switch value := value.(type) {
	case map[string]any:
		if parent == "fieldsV1" {
			return text(value)
		}
		if metadata, ok := value["metadata"].(map[string]any); ok {
			metadata = maps.Clone(metadata)
			value = maps.Clone(value)
			n.meta(value, metadata)
			value["metadata"] = metadata
		}
		out := map[string]any{}
		for key, element := range sorted(value) {
			out[key] = n.value(key, element)
		}
		if port, ok := out["nodePort"].(json.Number); ok && !strings.Contains(n.sent, port.String()) {
			out["nodePort"] = "<node port>"
		}
		return out
	case []any:
		out := make([]any, len(value))
		for i, element := range value {
			out[i] = n.value(parent, element)
		}
		if parent == "resourceRules" || parent == "nonResourceRules" { // in the order of a Go map
			slices.SortFunc(out, func(a, b any) int { return strings.Compare(text(a), text(b)) })
		}
		return out
	case string:
		if parent == "cells" && agePattern.MatchString(value) {
			return "<age>"
		}
		return n.text(value)
	default:
		return value
	}
}

// isTimed reports whether a bookmark came from the timer, not from the end of the initial events.
func isTimed(event any) bool {
	return lookup(event, "type") == "BOOKMARK" && !strings.Contains(text(event), "k8s.io/initial-events-end")
}

// meta replaces the resourceVersion of an object or a list, and a list's continue token.
func (n *normaliser) meta(object, metadata map[string]any) {
	rv, _ := metadata["resourceVersion"].(string)
	if token, ok := metadata["continue"].(string); ok && token != "" {
		metadata["continue"] = "<token>"
	}
	_, isList := object["items"]
	kind, _ := object["kind"].(string)
	_, isTable := object["rows"]
	annotations, _ := metadata["annotations"].(map[string]any)
	_, isMark := annotations["k8s.io/initial-events-end"]
	if rv == "" {
		return
	}
	number, err := strconv.ParseUint(rv, 10, 64)
	if err != nil {
		return
	}
	if isList || strings.HasSuffix(kind, "List") || (isTable && metadata["uid"] == nil) || isMark {
		// The position of a list moves with other clients' writes: only its place among the script's own positions
		// counts.
		metadata["resourceVersion"] = "<position not before the objects>"
		if number < n.newest {
			metadata["resourceVersion"] = "<position before an object>"
		}
		return
	}
	n.newest = max(n.newest, number)
	metadata["resourceVersion"] = n.ordinal(n.rvs, rv, "rv")
}

// ordinal returns the same name for the same value.
func (n *normaliser) ordinal(known map[string]string, value, prefix string) string {
	if known[value] == "" {
		known[value] = fmt.Sprintf("<%s%d>", prefix, len(known)+1)
	}
	return known[value]
}

var (
	uidPattern       = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	timePattern      = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	generatedPattern = regexp.MustCompile(`\b(gen-|Gen_|g{58})[bcdfghjklmnpqrstvwxz2456789]{5}\b`)
	ipPattern        = regexp.MustCompile(`\b10\.96\.\d+\.\d+\b`)
	positionPattern  = regexp.MustCompile(`(current: |resource version: )\d+( \(\d+\))?`)
	rvPattern        = regexp.MustCompile(`(record \(|precondition \(|precondition: |object meta: |resourceVersion\\*":\\*")\d+`)
	fingerprint      = regexp.MustCompile(`X509SHA256=[0-9a-f]{64}`)
	advertised       = regexp.MustCompile(`192\.0\.2\.1:\d+`)
	tokenPattern     = regexp.MustCompile(`^eyJ[A-Za-z0-9_.-]+$`)
	traceback        = regexp.MustCompile(`0x[0-9a-f]+`)
	agePattern       = regexp.MustCompile(`^(\d+[smhd])+$|^<invalid>$`)
)

// text normalises one string.
func (n *normaliser) text(s string) string {
	if tokenPattern.MatchString(s) { // before parts of it are taken for something else
		return "<token>"
	}
	s = strings.ReplaceAll(s, n.server, "<server>")
	s = advertised.ReplaceAllString(s, "<server>")
	s = fingerprint.ReplaceAllString(s, "<fingerprint>")
	s = uidPattern.ReplaceAllStringFunc(s, func(uid string) string {
		if strings.Contains(n.sent, uid) {
			return uid
		}
		return n.ordinal(n.uids, uid, "uid")
	})
	s = timePattern.ReplaceAllStringFunc(s, func(found string) string {
		switch {
		case strings.Contains(n.sent, found):
			return found
		case strings.Contains(found, "."):
			return "<time with fraction>"
		default:
			return "<time>"
		}
	})
	s = generatedPattern.ReplaceAllString(s, "$1<five>")
	s = ipPattern.ReplaceAllStringFunc(s, func(ip string) string {
		if strings.Contains(n.sent, ip) {
			return ip
		}
		return "<service ip>"
	})
	s = positionPattern.ReplaceAllString(s, "$1<n>")
	s = traceback.ReplaceAllString(s, "<address>")
	s = rvPattern.ReplaceAllStringFunc(s, func(found string) string {
		rv := found[strings.LastIndexFunc(found, func(r rune) bool { return r < '0' || r > '9' })+1:]
		if known := n.rvs[rv]; known != "" {
			return strings.TrimSuffix(found, rv) + known
		}
		return found
	})
	return s
}
