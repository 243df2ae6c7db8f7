package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// left is what there is of jobs: their processes, files in their folder for
// temporary ones, and shared memory by a name of the project's. Processes that
// are about to end are given a second.
func (r *runner) left() []string {
	var found []string
	for range 100 {
		if found = slices.Concat(r.processes(), files(r.tmp, ""), files("/dev/shm", "weft")); len(found) == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return found
}

func files(dir, prefix string) (found []string) {
	entries, _ := os.ReadDir(dir) // none where there is no such folder
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			found = append(found, filepath.Join(dir, e.Name()))
		}
	}
	return found
}

// processes are those that run programs of the runner's folder.
func (r *runner) processes() (found []string) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range all {
		if exe, err := os.Readlink(filepath.Join(p, "exe")); err == nil && strings.HasPrefix(exe, r.dir+"/") {
			found = append(found, p+": "+exe)
		}
	}
	return found
}
