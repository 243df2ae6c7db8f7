package remote

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// HoldHelper makes the agents survive if srun is killed. The caller calls it when an agent has
// dialled in, because the helper described below exists then, and before ranks start. Further calls
// do nothing.
//
// srun starts a helper process before it launches the step. Slurm's sources call the
// helper the shepherd. The helper reads a pipe that only srun writes. If srun dies without a write to
// this pipe, the helper makes slurmctld send SIGKILL to all tasks of the step, which are the
// agents. gorun kills the helper when srun has ended, but the helper may be faster.
//
// HoldHelper opens the write end of this pipe in gorun, too, so that the helper does not read end
// of file when srun dies. HoldHelper closes this end when srun has ended and gorun has killed the
// helper. If gorun dies as well, the helper reads end of file and ends the step. If HoldHelper does
// not find the pipe, it does nothing.
func (st *Step) HoldHelper() {
	st.hold.Do(func() {
		held := st.child.holdPipes()
		if len(held) == 0 {
			return
		}
		go func() { // ends when srun has ended
			<-st.child.ended
			closeFiles(held...)
		}()
	})
}

// holdPipes opens the write ends of the pipes that the process writes and does not read. It leaves
// out the process's stdio, because gorun reads that until it is closed. If the process was reaped,
// holdPipes returns nil.
func (c *child) holdPipes() (held []*os.File) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reaped {
		return nil
	}
	dir := fmt.Sprintf("/proc/%d/fd/", c.pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	stdio := []string{"0", "1", "2"}
	skip := make(map[string]bool)     // pipes that the process reads, or uses as stdio
	writes := make(map[string]string) // by pipe: path of a descriptor by which the process writes it
	for _, e := range entries {
		pipe, err := os.Readlink(dir + e.Name())
		if err != nil || !strings.HasPrefix(pipe, "pipe:") {
			continue
		}
		info, err := os.Lstat(dir + e.Name()) // the mode of the link is that of the open file
		switch {
		case err != nil:
		case slices.Contains(stdio, e.Name()), info.Mode()&0o400 != 0:
			skip[pipe] = true
		case info.Mode()&0o200 != 0:
			writes[pipe] = dir + e.Name()
		}
	}
	for pipe, path := range writes {
		if skip[pipe] {
			continue
		}
		if f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0); err == nil {
			held = append(held, f)
		}
	}
	return held
}
