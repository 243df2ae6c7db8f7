//go:build linux

package run

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weft-hpc/weft/internal/testbed"
)

// NothingLeft looks, at the end of the test, for what jobs have left on this machine
// and on the hosts: processes, files. Hosts that are cut off are looked at, too.
func NothingLeft(t testing.TB, c *testbed.Cluster) {
	t.Helper()
	before := time.Now().Add(-time.Second) // of a file system's clock
	t.Cleanup(func() { CheckLeft(t, c, before) })
}

// leftLimit is for how long what ends may take: a host that is cut off finds out by
// itself.
const leftLimit = 20 * time.Second

// CheckLeft looks now for what jobs have left that began after a time.
func CheckLeft(t testing.TB, c *testbed.Cluster, since time.Time) {
	t.Helper()
	err := Within(leftLimit, func() error {
		var all []string
		all = append(all, processes()...)
		for _, h := range c.Hosts() {
			for _, p := range h.Processes(nil) {
				if !strings.HasPrefix(filepath.Base(p.Exe), "sshd") { // which on a host that is cut off has not heard that its client is gone
					all = append(all, h.Name()+": "+p.String())
				}
			}
		}
		all = append(all, stagedDirs(since)...)
		if len(all) > 0 {
			return fmt.Errorf("left:\n%s", strings.Join(all, "\n"))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
		return
	}
	for _, h := range c.Hosts() {
		checkFiles(t, h)
	}
}

// processes are those of jobs of this test, wherever they run: they have its mark,
// or are gorun in some role.
func processes() (found []string) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		env, _ := os.ReadFile(d + "/environ")
		exe, _ := os.Readlink(d + "/exe")
		if bytes.Contains(append([]byte{0}, env...), []byte("\x00"+mark+"\x00")) || dir != "" && strings.HasPrefix(exe, dir+"/") {
			args, _ := os.ReadFile(d + "/cmdline")
			found = append(found, filepath.Base(d)+" "+string(bytes.ReplaceAll(bytes.TrimRight(args, "\x00"), []byte{0}, []byte{' '})))
		}
	}
	return found
}

var stagedName = regexp.MustCompile(`^gorun-([0-9a-f]{16})-`)

// stagedDirs are directories of jobs that began after a time, and of which no
// process is there: jobs of other tests have theirs at the same place.
func stagedDirs(since time.Time) (found []string) {
	entries, _ := os.ReadDir("/tmp")
	for _, e := range entries {
		m := stagedName.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		if fi, err := e.Info(); err != nil || fi.ModTime().Before(since) || lives(m[1]) {
			continue
		}
		found = append(found, "/tmp/"+e.Name())
	}
	return found
}

// lives says whether a job has a rank.
func lives(job string) bool {
	envs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, name := range envs {
		if env, _ := os.ReadFile(name); bytes.Contains(env, []byte("WEFT_JOB_ID="+job+"\x00")) {
			return true
		}
	}
	return false
}

// checkFiles looks at the files that a host has for itself.
func checkFiles(t testing.TB, h *testbed.Host) {
	t.Helper()
	const script = `ls -A /dev/shm | sed 's,^,/dev/shm/,'; ls -A ~root/.cache/weft | grep -v '^gorun-[0-9a-f]*$'; true`
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	out, err := h.Command(ctx, "sh", "-c", script).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("%s: left (%v):\n%s", h.Name(), err, out)
	}
}
