package differential

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
)

// Script is a few requests in order; the last one is what it is about.
type Script struct {
	// ID names it for ever: family/resource/variant.
	ID string
	// Steps are played in order. Answers to all but the last are compared by their status only, unless Compare says more.
	Steps []Step
}

// Step is one request. In Path, Query and Body these are replaced: {ns} by the script's namespace, {id} by its unique
// name, {rv:N}, {uid:N} and {continue:N} by what step N (from 0) answered, on the same server.
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
	// Body is text; in which form it is sent says Encoding.
	Body string
	// Encoding turns the JSON of Body into what is sent.
	Encoding Encoding
	// As is who asks; empty for the administrator.
	As Identity
	// Compare compares the whole answer although it is not the last step.
	Compare bool
	// Watch makes it a watch.
	Watch *Watch
}

// Watch is what happens while a watch is open.
type Watch struct {
	// During are played, each after the one before was answered, once the watch's headers have come.
	During []Step
	// Events is how many are waited for; a little longer is listened for more.
	Events int
	// Ends waits for the server to end it.
	Ends bool
}

// Encoding is how a body travels.
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

// Identity is who asks.
type Identity string

// The identities scripts use; see identity.go for what they may do.
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

// Verb is the first part of the id: what differences are grouped by.
func (s *Script) Verb() string {
	verb, _, _ := strings.Cut(s.ID, "/")
	return verb
}

// usesNamespace tells whether the script needs a namespace of its own.
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

// Share picks one script in n, the same ones whatever else there is.
func Share(scripts []Script, n uint32) []Script {
	if n <= 1 {
		return scripts
	}
	return slices.DeleteFunc(scripts, func(s Script) bool { return s.hash()%n != 0 })
}
