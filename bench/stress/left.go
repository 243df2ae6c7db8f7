//go:build linux

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// left returns the processes and files that a job has left behind. before is what r.found returned
// before the job. left waits up to a second for processes to end.
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

// found returns the processes of this runner's jobs, the files in the jobs' temporary folder, and the
// ports that the jobs have published. It does not look for shared memory, because weft's shared
// memory has no name and no job uses libfabric's.
func (r *runner) found() []string {
	return slices.Concat(r.processes(), files(r.tmp), files(r.published()))
}

func files(dir string) (found []string) {
	entries, _ := os.ReadDir(dir) // without the folder there are no entries
	for _, e := range entries {
		found = append(found, filepath.Join(dir, e.Name()))
	}
	return found
}

// processes returns the processes whose program is in the runner's folder.
func (r *runner) processes() (found []string) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range all {
		if exe, err := os.Readlink(filepath.Join(p, "exe")); err == nil && strings.HasPrefix(exe, r.dir.Path+"/") {
			found = append(found, p+": "+exe)
		}
	}
	return found
}
