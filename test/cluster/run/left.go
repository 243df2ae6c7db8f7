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

// NothingLeft checks at the end of the test that jobs have left no processes and files on this
// machine and on the hosts, including hosts that are cut off.
func NothingLeft(t testing.TB, c *testbed.Cluster) {
	t.Helper()
	// A second earlier, because the times of files may be earlier than this process's clock.
	before := time.Now().Add(-time.Second)
	t.Cleanup(func() { checkLeft(t, c, before) })
}

// leftLimit bounds the time in which all processes must have ended. An agent on a host that is cut off
// takes long, because it ends only when it detects that.
const leftLimit = 20 * time.Second

// checkLeft checks that jobs which began after the time since have left no processes and no files.
func checkLeft(t testing.TB, c *testbed.Cluster, since time.Time) {
	t.Helper()
	err := within(leftLimit, func() error {
		var all []string
		all = append(all, processes()...)
		for _, h := range c.Hosts() {
			for _, p := range h.Processes(nil) {
				// sshd may remain, because on a host that is cut off it does not detect that its
				// client has ended.
				if !strings.HasPrefix(filepath.Base(p.Exe), "sshd") {
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

// processes returns the processes of this test's jobs on all hosts: those with the variable mark, and
// those whose program Main has built.
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

// stagedDirs returns the directories in /tmp that gorun has made for jobs which began after the time since
// and have no process left. Jobs of other tests that still run have directories there too.
func stagedDirs(since time.Time) (found []string) {
	entries, _ := os.ReadDir("/tmp")
	for _, e := range entries {
		m := stagedName.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		if fi, err := e.Info(); err != nil || fi.ModTime().Before(since) || running(m[1]) {
			continue
		}
		found = append(found, "/tmp/"+e.Name())
	}
	return found
}

// running reports whether a rank of the job with this id runs.
func running(job string) bool {
	envs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, name := range envs {
		if env, _ := os.ReadFile(name); bytes.Contains(env, []byte("WEFT_JOB_ID="+job+"\x00")) {
			return true
		}
	}
	return false
}

// checkFiles checks that jobs have left no files in the host's /dev/shm and in its weft cache
// directory. Copies of gorun may be in the cache.
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
