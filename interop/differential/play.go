package differential

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

const (
	// stepLimit bounds one request, watches included.
	stepLimit = 15 * time.Second
	// eventLimit is the maximum wait of a watch for the events that its script expects.
	eventLimit = 3 * time.Second
	// quiet is the time for which a watch listens for unexpected events.
	quiet = 250 * time.Millisecond
	// bodyMax bounds a response.
	bodyMax = 16 << 20
)

// Answer is a server's response to one step.
type Answer struct {
	// Status is the HTTP status.
	Status int
	// Header are the answer's headers.
	Header http.Header
	// Body is the decoded body: JSON values, or a string for text.
	Body any
	// Format is the form of the body: compact, indented, text, empty, protobuf, yaml.
	Format string
	// Events are the decoded events of a watch; nil for other requests.
	Events []any
	// Ended is true if the server ended the watch while the player listened.
	Ended bool
	// During are the responses to the steps that ran while the watch was open.
	During []Answer
}

// player plays one script against one server.
type player struct {
	server  *Server
	script  *Script
	answers []Answer
}

// play returns the responses to all steps; an error means that a response is missing.
func play(ctx context.Context, server *Server, script *Script) ([]Answer, error) {
	p := &player{server: server, script: script}
	if script.usesNamespace() {
		name := script.Unique()
		answer, err := p.ask(ctx, Step{Method: http.MethodPost, Path: "/api/v1/namespaces", ContentType: jsonType,
			Body: fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, name)})
		if err != nil {
			return nil, err
		}
		if answer.Status != http.StatusCreated && answer.Status != http.StatusConflict {
			return nil, fmt.Errorf("namespace %s: status %d: %v", name, answer.Status, answer.Body)
		}
	}
	for i, step := range script.Steps {
		answer, err := p.ask(ctx, step)
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", i, err)
		}
		p.answers = append(p.answers, answer)
	}
	return p.answers, nil
}

// ask plays one step.
func (p *player) ask(ctx context.Context, step Step) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	request, err := p.request(ctx, step)
	if err != nil {
		return Answer{}, err
	}
	response, err := p.server.clients[step.As].Do(request)
	if err != nil {
		return Answer{}, err
	}
	defer response.Body.Close()
	answer := Answer{Status: response.StatusCode, Header: response.Header}
	if step.Watch != nil && response.StatusCode == http.StatusOK {
		err := p.follow(ctx, cancel, step.Watch, response, &answer)
		return answer, err
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, bodyMax))
	if err != nil {
		return Answer{}, fmt.Errorf("body: %w", err)
	}
	if answer.Header.Get("Content-Encoding") == "gzip" {
		unpacked, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			return Answer{}, err
		}
		if body, err = io.ReadAll(io.LimitReader(unpacked, bodyMax)); err != nil {
			return Answer{}, err
		}
	}
	answer.Body, answer.Format = decodeBody(answer.Header.Get("Content-Type"), body)
	return answer, nil
}

// request fills the open parts of a step.
func (p *player) request(ctx context.Context, step Step) (*http.Request, error) {
	text, err := p.fill(step.Body)
	if err != nil {
		return nil, err
	}
	body, err := encodeBody(text, step.Encoding)
	if err != nil {
		return nil, fmt.Errorf("encode the body: %w", err)
	}
	path, err := p.fill(step.Path)
	if err != nil {
		return nil, err
	}
	query, err := p.fill(step.Query)
	if err != nil {
		return nil, err
	}
	url := p.server.URL + path
	if query != "" {
		url += "?" + query
	}
	var reader io.Reader
	if len(body) > 0 {
		reader = bytes.NewReader(body)
	}
	request, err := http.NewRequestWithContext(ctx, step.Method, url, reader)
	if err != nil {
		return nil, err
	}
	for name, value := range step.Header {
		request.Header.Set(name, value)
	}
	// The coordinator closes a stranger's connection with its response, so the connection is not shared.
	request.Close = step.As == Anonymous || step.As == BadToken
	if step.Accept != "" {
		request.Header.Set("Accept", step.Accept)
	}
	if step.ContentType != "" {
		request.Header.Set("Content-Type", step.ContentType)
	}
	return request, nil
}

var placeholder = regexp.MustCompile(`\{(ns|id|rv:\d+|uid:\d+|continue:\d+)\}`)

// fill replaces the placeholders of a text.
func (p *player) fill(text string) (string, error) {
	var missing error
	out := placeholder.ReplaceAllStringFunc(text, func(found string) string {
		what, index, isIndexed := strings.Cut(strings.Trim(found, "{}"), ":")
		if !isIndexed {
			return p.script.Unique()
		}
		n, _ := strconv.Atoi(index)
		if n >= len(p.answers) {
			missing = fmt.Errorf("%s: there is no answer %d yet", found, n)
			return found
		}
		field := map[string]string{"rv": "resourceVersion", "uid": "uid", "continue": "continue"}[what]
		value, _ := lookup(p.answers[n].Body, "metadata", field).(string)
		return value // empty when the step failed, which its status shows
	})
	return out, missing
}

// lookup walks into maps.
func lookup(value any, path ...string) any {
	for _, key := range path {
		object, _ := value.(map[string]any)
		value = object[key]
	}
	return value
}

// decodeBody decodes by content type and returns the form of the body.
func decodeBody(contentType string, body []byte) (any, string) {
	base, _, _ := strings.Cut(contentType, ";")
	switch {
	case len(body) == 0:
		return nil, "empty"
	case base == protobufType:
		value, err := decodeProtobuf(body)
		if err != nil {
			return fmt.Sprintf("undecodable: %v", err), "protobuf"
		}
		return value, "protobuf"
	case base == yamlType:
		text, err := yaml.YAMLToJSON(body)
		if err != nil {
			return fmt.Sprintf("undecodable: %v", err), "yaml"
		}
		value, _ := decodeJSON(text)
		return value, "yaml"
	}
	value, err := decodeJSON(body)
	if err != nil {
		return string(body), "text"
	}
	format := "compact"
	if bytes.Contains(body, []byte("\n  ")) {
		format = "indented"
	}
	if bytes.HasSuffix(body, []byte("\n")) {
		format += " with newline"
	}
	return value, format
}

// follow reads a watch during the script's changes, until the expected events came and a little longer.
func (p *player) follow(ctx context.Context, cancel context.CancelFunc, watch *Watch, response *http.Response, answer *Answer) error {
	events := make(chan any)
	go readEvents(ctx, response, events)
	for _, step := range watch.During {
		done, err := p.ask(ctx, step)
		if err != nil {
			return err
		}
		answer.During = append(answer.During, done)
	}
	deadline := time.After(eventLimit)
	var silence <-chan time.Time
	for {
		if len(answer.Events) >= watch.Events && silence == nil {
			silence = time.After(quiet)
			if watch.Ends {
				silence = deadline
			}
		}
		select {
		case event, open := <-events:
			if !open {
				answer.Ended = true
				return nil
			}
			if failure, failed := event.(error); failed {
				return failure
			}
			answer.Events = append(answer.Events, event)
		case <-silence:
			cancel()
			return nil
		case <-deadline:
			cancel()
			return nil
		}
	}
}

// readEvents decodes the frames of a watch and closes events at its end. It sends an error as an event, except for the
// caller's cancellation.
func readEvents(ctx context.Context, response *http.Response, events chan<- any) {
	defer close(events)
	isProtobuf := strings.HasPrefix(response.Header.Get("Content-Type"), protobufType)
	var pending []byte
	buffer := make([]byte, 64<<10)
	send := func(event any) bool {
		select {
		case events <- event:
			return true
		case <-ctx.Done():
			return false
		}
	}
	for {
		n, err := response.Body.Read(buffer)
		pending = append(pending, buffer[:n]...)
		for {
			event, rest, decodeErr := nextFrame(pending, isProtobuf)
			if decodeErr != nil {
				send(decodeErr)
				return
			}
			if event == nil {
				break
			}
			pending = rest
			if !send(event) {
				return
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && ctx.Err() == nil {
				send(fmt.Errorf("watch: %w", err))
			}
			return
		}
	}
}

func nextFrame(data []byte, isProtobuf bool) (event any, rest []byte, err error) {
	if isProtobuf {
		return protobufFrame(data)
	}
	line, rest, complete := bytes.Cut(data, []byte("\n"))
	if !complete {
		return nil, data, nil
	}
	event, err = decodeJSON(line)
	return event, rest, err
}
