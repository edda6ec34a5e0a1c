package differential

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// acceptedText is the list of accepted differences. Its first lines describe the format.
//
//go:embed accepted.txt
var acceptedText string

// Accepted is one line of the list.
type Accepted struct {
	// Line is its number.
	Line int
	// Text is the line.
	Text string
	// Reason is why the difference stays.
	Reason string

	script, difference *regexp.Regexp
	matched            int
}

// AcceptedList are the lines in order.
type AcceptedList []*Accepted

// ParseAccepted reads the checked-in list.
func ParseAccepted() (AcceptedList, error) { return parseAccepted(acceptedText) }

func parseAccepted(text string) (AcceptedList, error) {
	var list AcceptedList
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		parts := strings.SplitN(line, " | ", 3)
		if len(parts) != 3 || strings.TrimSpace(parts[2]) == "" {
			return nil, fmt.Errorf("accepted.txt:%d: want `script | difference | reason`: %s", number, line)
		}
		list = append(list, &Accepted{Line: number, Text: line, Reason: strings.TrimSpace(parts[2]), script: glob(parts[0]), difference: glob(parts[1])})
	}
	return list, nil
}

// glob translates a pattern in which "*" matches any text.
func glob(pattern string) *regexp.Regexp {
	parts := strings.Split(strings.TrimSpace(pattern), "*")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	return regexp.MustCompile("(?s)^" + strings.Join(parts, ".*") + "$")
}

// explain gives a difference the reason of the first line that matches it. Only the differences that a line explains
// count as its use, so a line after a wider line shows up as superfluous.
func (l AcceptedList) explain(d *Difference) {
	text := d.String()
	for _, line := range l {
		if line.script.MatchString(d.Script) && line.difference.MatchString(text) {
			line.matched++
			d.Reason = line.Reason
			return
		}
	}
}

// Unused returns the lines that explained nothing, except those about races.
func (l AcceptedList) Unused() []*Accepted {
	var unused []*Accepted
	for _, line := range l {
		if line.matched == 0 && !strings.HasPrefix(line.Reason, "sometimes:") {
			unused = append(unused, line)
		}
	}
	return unused
}

// For returns the lines about authorization cells, or those about scripts.
func (l AcceptedList) For(cells bool) AcceptedList {
	return slices.DeleteFunc(slices.Clone(l), func(a *Accepted) bool { return strings.HasPrefix(a.Text, "cell/") != cells })
}
