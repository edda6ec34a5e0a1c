package harness

import "strings"

// The values of State.HubState.
const (
	LeaderHub   = "LeaderHub"
	FollowerHub = "FollowerHub"
	PendingHub  = "PendingHub"
)

// State is what a hub answers on /debug/state.json.
type State struct {
	HubState    string                `json:"hubState"`
	Leader      string                `json:"leader"`
	Epoch       Scalar                `json:"epoch"`
	Generation  Scalar                `json:"generation"`
	Relay       Relay                 `json:"relay"`
	Collections map[string]Collection `json:"collections"`
}

// Relay is what a hub does for others, and who does it for this one.
type Relay struct {
	// Address is where it accepts tunnels.
	Address string `json:"address"`
	// Tunnels is how many are open.
	Tunnels int `json:"tunnels"`
	// Through is the node it reaches the cloud through; empty when it does so itself.
	Through string `json:"through"`
}

// Collection is one replica of a hub.
type Collection struct {
	// Source is where it follows: the coordinator, the cloud or none.
	Source   string `json:"source"`
	Complete bool   `json:"complete"`
	Fresh    bool   `json:"fresh"`
	RV       Scalar `json:"rv"`
	// Generation is the timeline it is of.
	Generation Scalar `json:"generation"`
}

// Scalar is a JSON number, string or null, as text: the tests do not care which of them a counter is written as.
type Scalar string

// UnmarshalJSON implements json.Unmarshaler.
func (s *Scalar) UnmarshalJSON(text []byte) error {
	*s = Scalar(strings.Trim(string(text), `"`))
	if *s == "null" {
		*s = ""
	}
	return nil
}
