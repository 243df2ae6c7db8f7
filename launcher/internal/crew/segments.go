package crew

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// segmentDir is where libfabric's shm provider has its memory, as PID:UID:N.
const segmentDir = "/dev/shm"

// removeSegments removes the shared memory of ranks that were killed before
// they could. Their pids must not be free yet, or only just; what is older than
// the job belongs to another machine's processes, such as a container's, that
// share the directory.
func removeSegments(pids []int, begun time.Time) {
	entries, err := os.ReadDir(segmentDir)
	if err != nil {
		return
	}
	const clockTick = 10 * time.Millisecond // files are dated by a coarser clock
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
