package harness

import (
	"os/exec"
	"runtime"
	"sync"
)

// Children have a parent-death signal, which the kernel ties to the *thread* that forked them. Therefore one goroutine
// that never ends, locked to its thread, starts them all: they die exactly when this process does.

type spawnRequest struct {
	cmd  *exec.Cmd
	done chan error
}

var spawner = sync.OnceValue(func() chan<- spawnRequest {
	requests := make(chan spawnRequest)
	go func() {
		runtime.LockOSThread()
		for r := range requests {
			r.done <- r.cmd.Start()
		}
	}()
	return requests
})

// spawn starts cmd on the spawner's thread.
func spawn(cmd *exec.Cmd) error {
	done := make(chan error, 1)
	spawner() <- spawnRequest{cmd: cmd, done: done}
	return <-done
}
