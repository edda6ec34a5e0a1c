package harness

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// LinkState is a link's treatment of traffic.
type LinkState int

const (
	// LinkUp forwards everything.
	LinkUp LinkState = iota
	// LinkCut refuses connections and has closed the open ones.
	LinkCut
	// LinkBlackhole accepts connections and forwards nothing, in either direction: a silent failure.
	LinkBlackhole
)

// linkBuffer is the buffer size of one direction of one connection.
const linkBuffer = 32 << 10

// Link is a TCP forwarder between a hub and one server that can be cut, held and counted.
type Link struct {
	target  string
	address string

	up, down atomic.Int64 // bytes written towards the target, and back

	mu       sync.Mutex
	changed  *sync.Cond // on mu; broadcast when state changes or the link closes
	state    LinkState
	closed   bool
	listener net.Listener // nil while cut
	conns    map[net.Conn]struct{}
}

// NewLink listens on a free loopback port and forwards to target ("127.0.0.1:6443").
func NewLink(target string) (*Link, error) {
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	l := &Link{target: target, address: fmt.Sprintf("127.0.0.1:%d", port), conns: map[net.Conn]struct{}{}}
	l.changed = sync.NewCond(&l.mu)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.listen(); err != nil {
		return nil, err
	}
	return l, nil
}

// Address is the host:port a hub uses instead of the target's.
func (l *Link) Address() string { return l.address }

// URL is Address with the https scheme.
func (l *Link) URL() string { return "https://" + l.address }

// Up is the number of bytes forwarded to the target so far.
func (l *Link) Up() int64 { return l.up.Load() }

// Down is the number of bytes returned from the target so far.
func (l *Link) Down() int64 { return l.down.Load() }

// Resume restores traffic; held data moves on.
func (l *Link) Resume() error { return l.set(LinkUp) }

// Cut closes every connection with a reset and refuses new ones.
func (l *Link) Cut() error { return l.set(LinkCut) }

// Blackhole keeps connections and accepts new ones, but forwards nothing.
func (l *Link) Blackhole() error { return l.set(LinkBlackhole) }

// Close ends the link permanently.
func (l *Link) Close() {
	_ = l.set(LinkCut)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.changed.Broadcast()
}

func (l *Link) set(state LinkState) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.state = state
	defer l.changed.Broadcast()
	if state != LinkCut {
		return l.listen()
	}
	if l.listener != nil {
		_ = l.listener.Close()
		l.listener = nil
	}
	for conn := range l.conns {
		reset(conn)
	}
	return nil
}

// listen opens the port unless it is open. The caller holds mu.
func (l *Link) listen() error {
	if l.listener != nil {
		return nil
	}
	listener, err := net.Listen("tcp", l.address)
	if err != nil {
		return err
	}
	l.listener = listener
	go l.accept(listener)
	return nil
}

func (l *Link) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return // the listener was closed: that is how a cut ends this loop
		}
		if !l.track(conn) {
			reset(conn)
			continue
		}
		go l.serve(conn)
	}
}

func (l *Link) serve(near net.Conn) {
	defer l.forget(near)
	if !l.waitUp() {
		return
	}
	far, err := net.DialTimeout("tcp", l.target, 5*time.Second)
	if err != nil {
		return
	}
	if !l.track(far) {
		reset(far)
		return
	}
	defer l.forget(far)
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.pump(far, near, &l.up)
	}()
	l.pump(near, far, &l.down)
	<-done
}

// pump copies bytes one way until either end closes, then closes the write side so that the other direction can finish.
func (l *Link) pump(to, from net.Conn, counter *atomic.Int64) {
	buffer := make([]byte, linkBuffer)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if !l.waitUp() {
				break
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				break
			}
			counter.Add(int64(n))
		}
		if err != nil {
			break
		}
	}
	if tcp, ok := to.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
	if tcp, ok := from.(*net.TCPConn); ok {
		_ = tcp.CloseRead()
	}
}

// waitUp blocks while the link is a black hole and reports whether it is up afterwards.
func (l *Link) waitUp() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.state == LinkBlackhole && !l.closed {
		l.changed.Wait()
	}
	return l.state == LinkUp && !l.closed
}

// track registers a connection so that a cut reaches it; false if the link is cut already.
func (l *Link) track(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == LinkCut || l.closed {
		return false
	}
	l.conns[conn] = struct{}{}
	return true
}

func (l *Link) forget(conn net.Conn) {
	_ = conn.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, conn)
}

// reset closes with RST, so the peer learns of it immediately. A cut cable would not send one.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
