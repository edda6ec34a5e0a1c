package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PoolOptions configures a pool.
type PoolOptions struct {
	// Name is the pool's name and the beginning of its nodes' names.
	Name string
	// Hubs is the number of its nodes.
	Hubs int
	// HubEnv is added to the environment of every hub ("YURT_FAILPOINTS=…").
	HubEnv []string
	// HubArgs are added to the flags of every hub.
	HubArgs []string
	// ProxyAddress is the address of every hub's proxy ports, 127.0.0.1 if empty.
	ProxyAddress string
	// MoreServers are further servers of the cloud in every hub's flags; the first one is behind its link.
	MoreServers []string
	// Relay lets the hubs relay for each other, on loopback.
	Relay bool
	// CoordinatorEnv is added to the environment of the coordinator.
	CoordinatorEnv []string
}

// Pool is one coordinator and the hubs of its nodes.
type Pool struct {
	// Name is the pool's name; the nodes are <Name>-0, <Name>-1, …
	Name string
	// Dir holds its files and logs.
	Dir string
	// Coordinator is the pool's coordinator.
	Coordinator *Coordinator
	// Hubs in the order of their names.
	Hubs []*Hub

	cloud *Cloud
}

// StartPool creates the Nodes, starts the coordinator and all hubs, and returns when every hub's health port answers.
// Use [Pool.WaitLeader] next.
func (c *Cloud) StartPool(ctx context.Context, options PoolOptions) (*Pool, error) {
	p := &Pool{Name: options.Name, Dir: filepath.Join(c.Dir, "pool-"+options.Name), cloud: c}
	if err := os.MkdirAll(p.Dir, 0o755); err != nil {
		return nil, err
	}
	c.onStop(func() { _ = p.Stop() })
	for i := range options.Hubs {
		if err := c.CreateNode(ctx, p.NodeName(i), options.Name); err != nil {
			return nil, err
		}
	}
	coordinator, err := c.startPoolCoordinator(ctx, p.Dir, options.Name, options.CoordinatorEnv)
	if err != nil {
		return nil, err
	}
	p.Coordinator = coordinator
	for i := range options.Hubs {
		hub, err := c.newHub(p.NodeName(i), p.Dir, p.Coordinator.URL, options)
		if err != nil {
			return nil, errors.Join(err, p.Stop())
		}
		p.Hubs = append(p.Hubs, hub)
		if err := hub.Start(ctx); err != nil {
			return nil, errors.Join(err, p.Stop())
		}
	}
	return p, nil
}

// NodeName is the name of the i-th node.
func (p *Pool) NodeName(i int) string { return fmt.Sprintf("%s-%d", p.Name, i) }

// WaitLeader returns the only leading hub, once all others follow.
func (p *Pool) WaitLeader(ctx context.Context, limit time.Duration, among ...*Hub) (*Hub, error) {
	if len(among) == 0 {
		among = p.Hubs
	}
	var leader *Hub
	err := Poll(ctx, limit, readyPoll, func(ctx context.Context) error {
		leader = nil
		for _, hub := range among {
			state, err := hub.State(ctx)
			switch {
			case err != nil:
				return err
			case state.HubState == LeaderHub && leader != nil:
				return fmt.Errorf("%s and %s both lead", leader.Node, hub.Node)
			case state.HubState == LeaderHub:
				leader = hub
			case state.HubState != FollowerHub:
				return fmt.Errorf("%s is %s", hub.Node, state.HubState)
			}
		}
		if leader == nil {
			return errors.New("no hub leads")
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, p.Logs(15))
	}
	return leader, nil
}

// WaitSuccessor polls fast and returns the first leading hub among the given ones, with the time of that sighting. The
// others need not follow yet.
func (p *Pool) WaitSuccessor(ctx context.Context, limit time.Duration, among []*Hub) (*Hub, time.Time, error) {
	var leader *Hub
	var at time.Time
	err := Poll(ctx, limit, 5*time.Millisecond, func(ctx context.Context) error {
		for _, hub := range among {
			state, err := hub.State(ctx)
			if err == nil && state.HubState == LeaderHub {
				leader, at = hub, time.Now()
				return nil
			}
		}
		return errors.New("no successor leads")
	})
	if err != nil {
		return nil, at, fmt.Errorf("%w\n%s", err, p.Logs(15))
	}
	return leader, at, nil
}

// Others returns all hubs but one.
func (p *Pool) Others(without *Hub) []*Hub {
	var others []*Hub
	for _, hub := range p.Hubs {
		if hub != without {
			others = append(others, hub)
		}
	}
	return others
}

// CutCloud cuts every hub's link to the cloud.
func (p *Pool) CutCloud() error {
	var errs []error
	for _, hub := range p.Hubs {
		errs = append(errs, hub.Link.Cut())
	}
	return errors.Join(errs...)
}

// ResumeCloud restores every hub's link to the cloud.
func (p *Pool) ResumeCloud() error {
	var errs []error
	for _, hub := range p.Hubs {
		errs = append(errs, hub.Link.Resume())
	}
	return errors.Join(errs...)
}

// CloudBytes is the number of bytes that all hubs read from the cloud so far, TLS included.
func (p *Pool) CloudBytes() int64 {
	var sum int64
	for _, hub := range p.Hubs {
		sum += hub.Link.Down()
	}
	return sum
}

// Stop ends the hubs, then the coordinator, and removes the Nodes. Calling it again does nothing.
func (p *Pool) Stop() error {
	var errs []error
	for _, hub := range p.Hubs {
		if hub.Process != nil {
			errs = append(errs, hub.Process.Stop())
			hub.Process = nil
		}
		hub.Link.Close()
	}
	if p.Coordinator != nil && p.Coordinator.Process != nil {
		errs = append(errs, p.Coordinator.Process.Stop())
		p.Coordinator.Process = nil
	}
	p.removeNodes()
	return errors.Join(errs...)
}

// removeNodes deletes the pool's Nodes, so that they do not affect later tests; it is best effort.
func (p *Pool) removeNodes() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = p.cloud.Client.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: NodePoolLabel + "=" + p.Name})
}

// Logs returns the tails of the pool's logs, for a failing test to print.
func (p *Pool) Logs(lines int) string {
	var text string
	show := func(process *Process) {
		if process != nil {
			text += fmt.Sprintf("--- tail of %s\n%s\n", process.LogPath, process.Tail(lines))
		}
	}
	if p.Coordinator != nil {
		show(p.Coordinator.Process)
	}
	for _, hub := range p.Hubs {
		show(hub.Process)
	}
	return text
}
