//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// traced builds testdata/trace, and returns the path of the executable.
func traced(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "traced")
	out, err := exec.Command("go", "build", "-o", program, "./testdata/trace").CombinedOutput()
	require.NoError(t, err, string(out))
	return program
}

// traceEvent is an event of a trace in the format of Chrome.
type traceEvent struct {
	Ph, Name, ID string
	PID, TID     int
	TS           float64
	Args         map[string]any
}

// jobTrace is what a trace has.
type jobTrace struct {
	ranks map[int]string // names of the processes
	// calls and messages are the numbers of calls and of ends of messages, by process and name.
	calls, messages map[string]int
	// flows has, by id, the ends of arrows.
	flows map[string][]traceEvent
	tids  map[string]bool // process and thread of the calls
}

// traceIn reads a trace in the format of Chrome.
func traceIn(t *testing.T, file string) *jobTrace {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var all struct{ TraceEvents []traceEvent }
	require.NoError(t, json.Unmarshal(text, &all))
	j := &jobTrace{make(map[int]string), make(map[string]int), make(map[string]int), make(map[string][]traceEvent), make(map[string]bool)}
	for _, e := range all.TraceEvents {
		key := fmt.Sprint(e.PID, " ", e.Name)
		switch {
		case e.Ph == "M" && e.Name == "process_name":
			j.ranks[e.PID] = e.Args["name"].(string)
		case e.Ph == "X" && (e.Name == "sent" || e.Name == "received"):
			j.messages[key]++
			j.messages[fmt.Sprint(key, " tag ", e.Args["tag"])]++
		case e.Ph == "X":
			j.calls[key]++
			j.tids[fmt.Sprint(e.PID, " ", e.TID)] = true
		case e.Ph == "s" || e.Ph == "f":
			j.flows[e.ID] = append(j.flows[e.ID], e)
		}
	}
	return j
}

// requireWork checks that the trace has the work of a rank of size ranks, whose first rank has the number
// first: 2 times 20 messages, and 20 collectives.
func (j *jobTrace) requireWork(t *testing.T, number, first, size int) {
	t.Helper()
	require.Equal(t, 40, j.calls[fmt.Sprint(number, " Sendrecv")])
	require.Equal(t, 20, j.calls[fmt.Sprint(number, " Allreduce")])
	require.GreaterOrEqual(t, j.messages[fmt.Sprint(number, " sent")], 40)
	require.GreaterOrEqual(t, j.messages[fmt.Sprint(number, " received")], 40)
	next := 0 // number of arrows from this rank to the next one
	for id, ends := range j.flows {
		require.LessOrEqual(t, len(ends), 2)
		if len(ends) < 2 {
			continue
		}
		slices.SortFunc(ends, func(a, b traceEvent) int { return -strings.Compare(a.Ph, b.Ph) })
		require.Equal(t, "sf", ends[0].Ph+ends[1].Ph, id)
		require.Less(t, ends[0].TS, ends[1].TS)
		if ends[0].PID == number && ends[1].PID == first+(number-first+1)%size {
			next++
		}
	}
	require.GreaterOrEqual(t, next, 40)
}

// TestTrace traces three ranks, over tcp so that collectives send messages. Every message must have both
// ends.
func TestTrace(t *testing.T) {
	program, file := traced(t), filepath.Join(t.TempDir(), "trace.json")
	require.NoError(t, os.WriteFile(file, []byte("old"), 0o600))
	code, _, errs := gorun(t, "-n", "3", "-transport", "tcp", "-trace", file, program, "work")
	require.Zero(t, code, errs)
	require.Regexp(t, `(?m)^gorun: trace of 3 ranks: `+regexp.QuoteMeta(file)+`$`, errs)
	require.NotContains(t, errs, "lacks")
	j := traceIn(t, file)
	host, err := os.Hostname()
	require.NoError(t, err)
	for i := range 3 {
		require.Equal(t, fmt.Sprintf("rank %d (%s)", i, host), j.ranks[i])
		j.requireWork(t, i, 0, 3)
	}
	for id, ends := range j.flows {
		require.Len(t, ends, 2, id)
	}
	require.Greater(t, len(j.flows), 120+3*20, "messages of Sendrecv and Allreduce")
	require.Greater(t, len(j.tids), 3, "two goroutines at the same time")
	entries, err := os.ReadDir(filepath.Dir(file))
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

// TestTraceOfSpawnedRanks traces a job that starts two more ranks.
func TestTraceOfSpawnedRanks(t *testing.T) {
	program, file := traced(t), filepath.Join(t.TempDir(), "trace.json")
	code, _, errs := gorun(t, "-n", "2", "-transport", "tcp", "-trace", file, program, "spawn")
	require.Zero(t, code, errs)
	require.Contains(t, errs, "gorun: trace of 4 ranks: ")
	j := traceIn(t, file)
	require.Contains(t, j.ranks[3], "rank 1.1 (")
	for i := range 4 {
		j.requireWork(t, i, i/2*2, 2)
	}
}

// TestTraceOfKilledRank kills a rank after a thousand messages. The trace must have all of them, and what the
// other ranks have done.
func TestTraceOfKilledRank(t *testing.T) {
	program, file := traced(t), filepath.Join(t.TempDir(), "trace.json")
	code, _, errs := gorun(t, "-n", "3", "-trace", file, program, "kill", "1")
	require.Equal(t, 137, code, errs)
	require.Contains(t, errs, "gorun: trace of 3 ranks: ")
	require.NotContains(t, errs, "lacks")
	j := traceIn(t, file)
	for i := range 3 {
		j.requireWork(t, i, 0, 3)
	}
	require.Equal(t, 1000, j.calls["1 Send"])
	require.Equal(t, 1000, j.calls["1 Irecv"])
	require.Equal(t, 1000, j.calls["1 Wait"])
	require.Equal(t, 1000, j.messages["1 sent tag 3"])
	require.Equal(t, 1000, j.messages["1 received tag 3"])
}

// TestTraceOfOtherPrograms traces a program that is no weft program. gorun must name the ranks.
func TestTraceOfOtherPrograms(t *testing.T) {
	program, file := traced(t), filepath.Join(t.TempDir(), "trace.json")
	code, _, errs := gorun(t, "-trace", file, "-n", "2", "true", ":", "-n", "1", program, "flood", "5")
	require.NotEqual(t, 0, len(errs))
	require.Contains(t, errs, "gorun: no trace of ranks 0-1: true is not a weft program, or has not called comm.Init\n")
	_ = code // the weft program waits for the others, and gorun reports that
	file2 := filepath.Join(t.TempDir(), "trace.json")
	code, _, errs = gorun(t, "-trace", file2, "-n", "2", "true")
	require.Zero(t, code)
	require.Contains(t, errs, "gorun: no trace of ranks 0-1: true is not a weft program, or has not called comm.Init\n")
	require.Contains(t, errs, "gorun: trace of 0 ranks: ")
	require.Empty(t, traceIn(t, file2).ranks)
}

// TestTraceRefused gives gorun files that it cannot write. It must not start ranks.
func TestTraceRefused(t *testing.T) {
	dir := t.TempDir()
	file, started := filepath.Join(dir, "file"), filepath.Join(dir, "started")
	require.NoError(t, os.WriteFile(file, nil, 0o666))
	for name, says := range map[string]string{
		dir:               "is a directory",
		dir + "/no/trace": "no such file or directory",
		file + "/trace":   "not a directory",
		"/proc/trace":     "no such file or directory",
	} {
		code, _, errs := gorun(t, "-trace", name, "touch", started)
		require.Equal(t, 1, code, errs)
		require.Equal(t, fmt.Sprintf("gorun: -trace (job.trace): %s: %s\n", name, says), errs)
		require.NoFileExists(t, started)
	}
	code, _, errs := gorun(t, "-trace", "-", "touch", started)
	require.Equal(t, exitUsage, code, errs)
	require.NoFileExists(t, started)
}

// TestTraceOnAFullDisk writes the trace to a device without room. gorun must exit with 1 and the cause.
func TestTraceOnAFullDisk(t *testing.T) {
	code, _, errs := gorun(t, "-n", "2", "-trace", "/dev/full", traced(t), "work")
	require.Equal(t, 1, code, errs)
	require.Contains(t, errs, "gorun: the trace is lost: no space left on device\n")
	require.NotContains(t, errs, "trace of 2 ranks")
}

// TestTraceToAPipe writes the trace to a pipe, in the format that the user names.
func TestTraceToAPipe(t *testing.T) {
	dir := t.TempDir()
	pipe, copied := filepath.Join(dir, "pipe"), filepath.Join(dir, "copy")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	cat := exec.Command("sh", "-c", `exec cat "$0" > "$1"`, pipe, copied)
	require.NoError(t, cat.Start())
	code, _, errs := gorun(t, "-n", "2", "-trace", pipe, "-trace-format", "chrome", traced(t), "work")
	require.Zero(t, code, errs)
	require.NoError(t, cat.Wait())
	require.Len(t, traceIn(t, copied).ranks, 2)
}

// TestTraceOfWaits: a trace has the calls of windows, of recovery and of partitioned operations in which a
// rank waits.
func TestTraceOfWaits(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace")
	code, _, errs := gorun(t, "-n", "2", "-trace", file, "-trace-format", "chrome", traced(t), "waits")
	require.Zero(t, code, errs)
	j := traceIn(t, file)
	for call, n := range map[string]int{"Start": 1, "Complete": 1, "Wait": 3, "TryLock": 1, "Unlock": 1, "Agree": 1, "Shrink": 1} {
		for rank := range 2 {
			require.Equal(t, n, j.calls[fmt.Sprintf("%d %s", rank, call)], "rank %d: %s", rank, call)
		}
	}
}

// TestTraceOfManyMessages traces a rank that sends many more messages than its ring holds, while the
// drainer reads. What the trace has and what it lacks must be all of them.
func TestTraceOfManyMessages(t *testing.T) {
	program, file := traced(t), filepath.Join(t.TempDir(), "trace")
	const n = 400_000 // the rings hold 1<<19 messages and as many calls
	code, _, errs := gorun(t, "-n", "1", "-trace", file, "-trace-format", "chrome", program, "flood", fmt.Sprint(n))
	require.Zero(t, code, errs)
	j := traceIn(t, file)
	lost := 0
	if m := regexp.MustCompile(`the trace lacks (\d+) events of rank 0: they came faster`).FindStringSubmatch(errs); m != nil {
		_, err := fmt.Sscan(m[1], &lost)
		require.NoError(t, err)
	}
	have := j.messages["0 sent"] + j.messages["0 received"] + j.calls["0 Send"] + j.calls["0 Irecv"] + j.calls["0 Wait"]
	t.Logf("%d events, %d lost", have, lost)
	require.Equal(t, 5*n, have+lost)
}

// TestPSAtTheEnd: gorun waits for a reader of its trace, and the ranks have ended. gorun -ps and
// gorun -top must still show the job and its ranks.
func TestPSAtTheEnd(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	j := start(t, 2, "-trace", pipe, "sh", "-c", `echo up; exec "$0" work`, traced(t))
	row := regexp.MustCompile(`(?m)^[0-9a-f]{16} +` + strconv.Itoa(j.cmd.Process.Pid) + ` +2 +1 +\d+s +ending +sh$`)
	ended := regexp.MustCompile(`(?m)^0 .*ended$\n^1 .*ended$`)
	require.Eventually(t, func() bool {
		code, out, errs := gorun(t, "-ps")
		require.Zero(t, code, errs)
		return row.MatchString(out)
	}, time.Minute, time.Millisecond)
	code, out, errs := gorun(t, "-top", strconv.Itoa(j.cmd.Process.Pid))
	require.Zero(t, code, errs)
	require.Regexp(t, ended, out)
	_, err := os.ReadFile(pipe)
	require.NoError(t, err)
	code, errs = j.end(t)
	require.Zero(t, code, errs)
}
