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
// now. removeSegments does not touch files that are older than begun, when the job began. A process
// of a container, for example, may share the directory and have the same pid in its own namespace.
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
