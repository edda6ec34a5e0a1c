package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// stopGrace is the time between SIGTERM and SIGKILL when the harness stops a process.
const stopGrace = 20 * time.Second

// Process is one running child with its log file.
type Process struct {
	// Name is its name in the log file and messages.
	Name string
	// LogPath holds its stdout and stderr.
	LogPath string
	// StartedAt is the time of exec.
	StartedAt time.Time

	cmd    *exec.Cmd
	exited chan struct{} // closed once the child was reaped; err is set before
	err    error
}

// Command describes a process to start.
type Command struct {
	// Name is used for the log file <dir>/<name>.log; starting the same name again appends to it.
	Name string
	// Path is the executable.
	Path string
	// Args are its arguments without the program name.
	Args []string
	// Env is added to the environment of this process.
	Env []string
	// Dir is the folder of the log and the child's TMPDIR.
	Dir string
}

// Start runs the command in its own process group.
func Start(c Command) (*Process, error) {
	logPath := filepath.Join(c.Dir, c.Name+".log")
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	fmt.Fprintf(log, "=== %s %s\n", c.Path, strings.Join(c.Args, " "))
	cmd := exec.Command(c.Path, c.Args...)
	cmd.Env = append(append(os.Environ(), "TMPDIR="+c.Dir), c.Env...)
	cmd.Dir = c.Dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &Process{Name: c.Name, LogPath: logPath, StartedAt: time.Now(), cmd: cmd, exited: make(chan struct{})}
	if err := spawn(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// Pid is the process id, which is also its process group.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Running reports whether it still runs.
func (p *Process) Running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// Signal sends sig to the process alone.
func (p *Process) Signal(sig syscall.Signal) error { return p.cmd.Process.Signal(sig) }

// Kill ends the whole process group with SIGKILL and waits until the process is gone.
func (p *Process) Kill() {
	if !p.Running() {
		return
	}
	_ = syscall.Kill(-p.Pid(), syscall.SIGKILL)
	<-p.exited
}

// Stop sends SIGTERM, waits, kills the rest of the group and returns the result of the process. An earlier exit is not
// an error here.
func (p *Process) Stop() error {
	if !p.Running() {
		return nil
	}
	_ = p.Signal(syscall.SIGCONT)
	_ = p.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(stopGrace):
		p.Kill()
		return fmt.Errorf("%s did not stop within %s of SIGTERM", p.Name, stopGrace)
	}
	_ = syscall.Kill(-p.Pid(), syscall.SIGKILL) // helpers it left behind; no such group is the normal answer
	var exit *exec.ExitError
	if errors.As(p.err, &exit) {
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() && ws.Signal() == syscall.SIGTERM {
			return nil
		}
	}
	return p.err
}

// Tail returns the last n lines of its log.
func (p *Process) Tail(n int) string {
	text, err := os.ReadFile(p.LogPath)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}
