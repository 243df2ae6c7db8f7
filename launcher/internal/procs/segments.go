package procs

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// segmentDir is where libfabric's shm provider keeps its segments. Their names are PID:UID:N.
const segmentDir = "/dev/shm"

// removeSegments removes the shared memory segments of ranks that were killed before they could
// remove them. The caller makes sure that the pids are still those of the ranks, or were until just
// now. begun is when the job began. removeSegments leaves older files alone. For example, such a
// file may belong to a process in a container that shares the directory, and whose pid in its own
// namespace is that of a rank.
func removeSegments(pids []int, begun time.Time) {
	entries, err := os.ReadDir(segmentDir)
	if err != nil {
		return
	}
	const clockTick = 10 * time.Millisecond // a file's time may lie behind the clock by this much
	for _, e := range entries {
		owner, rest, _ := strings.Cut(e.Name(), ":")
		pid, err := strconv.Atoi(owner)
		if err != nil || !strings.Contains(rest, ":") || !slices.Contains(pids, pid) {
			continue
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && info.ModTime().After(begun.Add(-clockTick)) {
			_ = os.Remove(filepath.Join(segmentDir, e.Name()))
		}
	}
}
