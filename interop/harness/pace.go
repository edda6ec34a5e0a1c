package harness

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"
)

const (
	// paceEvery is how often the machine is looked at.
	paceEvery = 50 * time.Millisecond
	// stretchMax bounds what a loaded machine excuses.
	stretchMax = 10.0
	// loadFile tells in its fourth field how many tasks run or wait for a CPU.
	loadFile = "/proc/loadavg"
)

// Pace is how fast programs get on since a moment: a loaded machine lets each of them run for a part of the time only. A limit on
// what a program does has to count that part alone, or it judges whatever else the machine does.
type Pace struct {
	started time.Time
	sum     float64
	count   float64
}

// machine adds up how many tasks there were for each CPU.
var machine struct {
	sync.Mutex
	once  sync.Once
	sum   float64
	count float64
}

// StartPace begins to measure.
func StartPace() Pace {
	machine.once.Do(func() {
		look()
		go func() {
			for range time.Tick(paceEvery) {
				look()
			}
		}()
	})
	machine.Lock()
	defer machine.Unlock()
	return Pace{started: time.Now(), sum: machine.sum, count: machine.count}
}

// Allows tells whether a limit is not over yet, as the machine has been since the start.
func (p Pace) Allows(limit time.Duration) bool { return time.Since(p.started) <= p.Limit(limit) }

// Limit is what a limit comes to, as the machine has been since the start: never less, at most ten times as long.
func (p Pace) Limit(limit time.Duration) time.Duration {
	machine.Lock()
	defer machine.Unlock()
	return stretched(limit, machine.sum-p.sum, machine.count-p.count)
}

// stretched is a limit in which programs get on as far as they would alone: sum is that of tasks per CPU, at count looks.
func stretched(limit time.Duration, sum, count float64) time.Duration {
	if count == 0 {
		return limit
	}
	return time.Duration(float64(limit) * min(stretchMax, max(1, sum/count)))
}

func look() {
	text, err := os.ReadFile(loadFile)
	tasks := tasksIn(text)
	if err != nil {
		tasks = 0 // another kind of machine: limits are what they say
	}
	machine.Lock()
	defer machine.Unlock()
	machine.sum += float64(tasks) / float64(runtime.NumCPU())
	machine.count++
}

// tasksIn is how many tasks run or wait for a CPU, without whoever asks: "0.20 0.18 0.12 2/80 11206" says 1.
func tasksIn(loadavg []byte) int {
	fields := bytes.Fields(loadavg)
	if len(fields) < 4 {
		return 0
	}
	running, _, _ := bytes.Cut(fields[3], []byte("/"))
	count, err := strconv.Atoi(string(running))
	if err != nil {
		return 0
	}
	return max(0, count-1)
}
