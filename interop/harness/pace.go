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
	// paceEvery is the sampling interval of the machine's load.
	paceEvery = 50 * time.Millisecond
	// stretchMax bounds the extension of a limit by load.
	stretchMax = 10.0
	// loadFile contains in its fourth field the number of tasks that run or wait for a CPU.
	loadFile = "/proc/loadavg"
)

// Pace measures the progress that programs can make on a loaded machine: each of them runs for a part of the time only.
// A limit on a program must count that part alone. Otherwise it also measures the machine's other work.
type Pace struct {
	started time.Time
	sum     float64
	count   float64
}

// machine sums the number of tasks per CPU.
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

// Allows reports whether a limit has not expired yet, given the load since the start.
func (p Pace) Allows(limit time.Duration) bool { return time.Since(p.started) <= p.Limit(limit) }

// Limit is a limit extended by the load since the start: never shorter, at most ten times as long.
func (p Pace) Limit(limit time.Duration) time.Duration {
	machine.Lock()
	defer machine.Unlock()
	return stretched(limit, machine.sum-p.sum, machine.count-p.count)
}

// stretched extends a limit to the time in which programs make the same progress under load: sum is the sum of tasks
// per CPU, over count samples.
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
		tasks = 0 // another operating system: limits are unchanged
	}
	machine.Lock()
	defer machine.Unlock()
	machine.sum += float64(tasks) / float64(runtime.NumCPU())
	machine.count++
}

// tasksIn is the number of tasks that run or wait for a CPU, without the reading one: "0.20 0.18 0.12 2/80 11206" gives
// 1.
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
