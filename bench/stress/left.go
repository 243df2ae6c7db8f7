//go:build linux

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// left is what a job has left behind, given what there was before. Processes that
// are about to end are given a second.
func (r *runner) left(before []string) (found []string) {
	for range 100 {
		found = slices.DeleteFunc(r.found(), func(s string) bool { return slices.Contains(before, s) })
		if len(found) == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return found
}

// found is what there is of this runner's jobs: processes, and files in their
// folder for temporary ones. The memory that ranks share has no name. Segments of
// libfabric, which no job that is drawn uses, are not looked for.
func (r *runner) found() []string { return slices.Concat(r.processes(), files(r.tmp)) }

func files(dir string) (found []string) {
	entries, _ := os.ReadDir(dir) // none where there is no such folder
	for _, e := range entries {
		found = append(found, filepath.Join(dir, e.Name()))
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
