package harness

import "strings"

// The values of State.HubState.
const (
	LeaderHub   = "LeaderHub"
	FollowerHub = "FollowerHub"
	PendingHub  = "PendingHub"
)

// State is a hub's response on /debug/state.json.
type State struct {
	HubState    string                `json:"hubState"`
	Leader      string                `json:"leader"`
	Epoch       Scalar                `json:"epoch"`
	Generation  Scalar                `json:"generation"`
	Relay       Relay                 `json:"relay"`
	Collections map[string]Collection `json:"collections"`
}

// Relay is the hub's relay state: its service for others, and the peer that it uses.
type Relay struct {
	// Address is its listening address for tunnels.
	Address string `json:"address"`
	// Tunnels is the number of open tunnels.
	Tunnels int `json:"tunnels"`
	// Through is the node it uses to reach the cloud; empty if it reaches the cloud itself.
	Through string `json:"through"`
}

// Collection is one replica of a hub.
type Collection struct {
	// Source is the source it follows: the coordinator, the cloud or none.
	Source   string `json:"source"`
	Complete bool   `json:"complete"`
	Fresh    bool   `json:"fresh"`
	RV       Scalar `json:"rv"`
	// Generation is the generation of its history.
	Generation Scalar `json:"generation"`
}

// Scalar is a JSON number, string or null, as text: the tests accept a counter in any of them.
type Scalar string

// UnmarshalJSON implements json.Unmarshaler.
func (s *Scalar) UnmarshalJSON(text []byte) error {
	*s = Scalar(strings.Trim(string(text), `"`))
	if *s == "null" {
		*s = ""
	}
	return nil
}
