package harness

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// Ports are taken below the kernel's ephemeral range (32768 up). No outgoing connection can take one between its choice
// and the listen call.
const (
	portFirst = 20000
	portLast  = 32000
)

var (
	portsMu    sync.Mutex
	portsTaken = map[int]bool{} // guarded by portsMu; ports handed out by this process, never handed out twice
)

// FreePort returns a loopback TCP port without a listener that this process has not handed out before.
func FreePort() (int, error) {
	portsMu.Lock()
	defer portsMu.Unlock()
	for range 1000 {
		port := portFirst + rand.IntN(portLast-portFirst)
		if portsTaken[port] {
			continue
		}
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		_ = listener.Close()
		portsTaken[port] = true
		return port, nil
	}
	return 0, errors.New("no free loopback port found in 1000 attempts")
}

// FreePorts returns n different ports, see [FreePort].
func FreePorts(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		port, err := FreePort()
		if err != nil {
			return nil, err
		}
		ports[i] = port
	}
	return ports, nil
}
