package harness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// MemoryGroup is a memory cgroup with a limit, below that of this process. It has no swap.
type MemoryGroup struct {
	dir  string
	isV2 bool
}

// NewMemoryGroup creates a cgroup, of version 1 or 2. It fails where this process may not.
func NewMemoryGroup(name string, limit int64) (*MemoryGroup, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	var parents []MemoryGroup
	for line := range strings.Lines(string(own)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(fields) != 3:
		case slices.Contains(strings.Split(fields[1], ","), "memory"):
			parents = append(parents, MemoryGroup{dir: filepath.Join("/sys/fs/cgroup/memory", fields[2])})
		case fields[0] == "0":
			parents = append(parents, MemoryGroup{dir: filepath.Join("/sys/fs/cgroup", fields[2]), isV2: true})
		}
	}
	errs := []error{errors.New("no memory cgroup")}
	for _, parent := range parents {
		group := &MemoryGroup{dir: filepath.Join(parent.dir, name), isV2: parent.isV2}
		if err := errors.Join(os.Mkdir(group.dir, 0o755), group.limit(limit)); err == nil {
			return group, nil
		} else {
			errs = append(errs, err)
		}
		group.Close()
	}
	return nil, errors.Join(errs...)
}

func (g *MemoryGroup) limit(bytes int64) error {
	set := func(name, value string) error { return os.WriteFile(filepath.Join(g.dir, name), []byte(value), 0o644) }
	if g.isV2 {
		return errors.Join(set("memory.max", fmt.Sprint(bytes)), set("memory.swap.max", "0"))
	}
	return errors.Join(set("memory.limit_in_bytes", fmt.Sprint(bytes)), set("memory.swappiness", "0"))
}

// Wrap returns the command that starts inside of the group.
func (g *MemoryGroup) Wrap(c Command) Command {
	c.Args = append([]string{"-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(g.dir, "cgroup.procs"), c.Path}, c.Args...)
	c.Path = "/bin/sh"
	return c
}

// Limit makes the next process start inside of a memory cgroup.
func (h *Hub) Limit(group *MemoryGroup) { h.command = group.Wrap(h.command) }

// Kills is the number of processes that were killed because of the limit.
func (g *MemoryGroup) Kills() (int64, error) {
	if g.isV2 {
		return g.entry("memory.events", "oom_kill")
	}
	return g.entry("memory.oom_control", "oom_kill")
}

// Anonymous is the memory of the processes that no file backs, bytes.
func (g *MemoryGroup) Anonymous() (int64, error) {
	if g.isV2 {
		return g.entry("memory.stat", "anon")
	}
	return g.entry("memory.stat", "total_rss")
}

func (g *MemoryGroup) entry(file, name string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(g.dir, file))
	if err != nil {
		return 0, err
	}
	return numberAfter(string(text), name)
}

// Close removes the group, whose processes have to be gone.
func (g *MemoryGroup) Close() { _ = os.Remove(g.dir) }

// MemoryOf reads a number of kilobytes in /proc/<pid>/status ("VmHWM", "VmSwap") in bytes.
func (p *Process) MemoryOf(name string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid()))
	if err != nil {
		return 0, err
	}
	kilobytes, err := numberAfter(string(text), name+":")
	return kilobytes << 10, err
}

// numberAfter finds the line that begins with this word, and returns the number after it.
func numberAfter(text, word string) (int64, error) {
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == word {
			return strconv.ParseInt(fields[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("no %q in %.200q", word, text)
}
