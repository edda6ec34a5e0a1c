package differential

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
)

// Script is a few requests in order; the last one is its subject.
type Script struct {
	// ID is its permanent name: family/resource/variant.
	ID string
	// Steps are played in order. Responses to all but the last are compared by their status only, unless Compare is
	// set.
	Steps []Step
}

// Step is one request. Path, Query and Body may hold placeholders: {ns} is the script's namespace, {id} its unique
// name. {rv:N}, {uid:N} and {continue:N} come from the response to step N (from 0), on the same server.
type Step struct {
	Method string
	Path   string
	// Query without the question mark, already escaped.
	Query string
	// Accept, sent when not empty.
	Accept string
	// ContentType of the body, sent when not empty.
	ContentType string
	// Header holds further headers.
	Header map[string]string
	// Body is text; Encoding defines its form on the wire.
	Body string
	// Encoding converts the JSON of Body to the sent bytes.
	Encoding Encoding
	// As is the caller; empty for the administrator.
	As Identity
	// Compare compares the whole response although it is not the last step.
	Compare bool
	// Watch makes it a watch.
	Watch *Watch
}

// Watch holds the steps and expectations of an open watch.
type Watch struct {
	// During are played in order, once the watch's headers have arrived. Each waits for the response to the previous
	// one.
	During []Step
	// Events is the number of expected events; the player listens a little longer for more.
	Events int
	// Ends waits for the server to end it.
	Ends bool
}

// Encoding is the form of a body on the wire.
type Encoding int

// The encodings of a body.
const (
	// Raw sends Body as it is.
	Raw Encoding = iota
	// YAML sends the JSON of Body as YAML.
	YAML
	// Protobuf sends the JSON of Body in the Kubernetes protobuf envelope.
	Protobuf
)

// Identity is a caller.
type Identity string

// The identities of scripts; identity.go defines their rights.
const (
	Admin     Identity = ""
	Viewer    Identity = "viewer"
	Editor    Identity = "editor"
	Stranger  Identity = "stranger"
	Node      Identity = "node"
	Anonymous Identity = "anonymous"
	BadToken  Identity = "bad-token"
)

// Unique is a name that only this script uses: a DNS label.
func (s *Script) Unique() string {
	return fmt.Sprintf("d%08x", s.hash())
}

func (s *Script) hash() uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(s.ID))
	return h.Sum32()
}

// Verb is the first part of the id, the key for grouping differences.
func (s *Script) Verb() string {
	verb, _, _ := strings.Cut(s.ID, "/")
	return verb
}

// usesNamespace reports whether the script needs its own namespace.
func (s *Script) usesNamespace() bool {
	return slices.ContainsFunc(s.Steps, func(step Step) bool {
		return strings.Contains(step.Path+step.Body, "{ns}")
	})
}

// checkUnique fails when two scripts share an id or a name made of it.
func checkUnique(scripts []Script) error {
	seen := map[string]string{}
	for i := range scripts {
		name := scripts[i].Unique()
		if other, ok := seen[name]; ok {
			return fmt.Errorf("scripts %q and %q share the name %s", other, scripts[i].ID, name)
		}
		seen[name] = scripts[i].ID
	}
	return nil
}

// Share returns a fixed sample of one script in n. The choice of a script is independent of the others.
func Share(scripts []Script, n uint32) []Script {
	if n <= 1 {
		return scripts
	}
	return slices.DeleteFunc(scripts, func(s Script) bool { return s.hash()%n != 0 })
}
