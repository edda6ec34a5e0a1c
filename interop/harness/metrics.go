package harness

import (
	"fmt"
	"strconv"
	"strings"
)

// Metrics is a scraped page in the Prometheus text format, by series ("name" or "name{a=\"b\"}").
type Metrics map[string]float64

// ParseMetrics parses a page and skips unknown lines.
func ParseMetrics(page []byte) Metrics {
	metrics := Metrics{}
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSpace(line)
		cut := strings.LastIndexByte(line, ' ')
		if cut < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if value, err := strconv.ParseFloat(line[cut+1:], 64); err == nil {
			metrics[line[:cut]] = value
		}
	}
	return metrics
}

// Sum adds the series of one metric that have all the given labels (`result="applied"`). A missing metric is an error,
// so that a renamed metric never reads as zero.
func (m Metrics) Sum(name string, labels ...string) (float64, error) {
	var sum float64
	var known bool
series:
	for series, value := range m {
		bare, rest, _ := strings.Cut(series, "{")
		if bare != name {
			continue
		}
		known = true
		for _, label := range labels {
			if !strings.Contains(rest, label) {
				continue series
			}
		}
		sum += value
	}
	if !known {
		return 0, fmt.Errorf("no metric %s on the page", name)
	}
	return sum, nil
}
