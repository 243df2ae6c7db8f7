package contest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// killDelay is the time between SIGTERM and SIGKILL, in which a launcher can end its ranks.
const killDelay = 5 * time.Second

// marker is the beginning of an environment variable that Output sets for a command, so that all
// processes of the command inherit it. It identifies these processes even if a launcher puts ranks in
// process groups of their own.
const marker = "CONTEST_COMMAND="

// Output runs a command and returns its stdout, also if the command fails. If it fails, the error
// contains its stderr. If ctx ends before the command, the command gets SIGTERM, and killDelay later
// SIGKILL. Before Output returns an error, it kills the processes of the command that still run.
func Output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	mark := fmt.Sprintf("%s%d.%d.", marker, os.Getpid(), time.Now().UnixNano())
	cmd.Env = append(os.Environ(), mark)
	// The command gets a process group of its own. So Ctrl-C sends SIGINT only to this process, which
	// then ends the command.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = killDelay
	err := cmd.Run()
	if err == nil {
		return out.String(), nil
	}
	if ended := context.Cause(ctx); ended != nil {
		err = ended
	}
	err = errors.Join(err, killMarked(mark))
	return out.String(), fmt.Errorf("%s %s: %w\n%s", filepath.Base(name), strings.Join(args, " "), err, errs.Bytes())
}

// killMarked kills the processes that have the mark until none is left. If some are left after
// about two seconds, it returns an error.
func killMarked(mark string) error {
	for range 100 {
		left := marked(mark)
		if len(left) == 0 {
			return nil
		}
		for _, pid := range left {
			// The error does not matter, because the process may have ended by itself.
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("processes %v do not end", marked(mark))
}

// marked returns the ids of the processes whose environment has the mark.
func marked(mark string) []int {
	files, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is well-formed
	var pids []int
	for _, file := range files {
		env, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(append([]byte{0}, env...), []byte("\x00"+mark)) {
			continue // the process has ended, belongs to another user, or has no such mark
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Objects parses the JSON objects that a benchmark prints, one per size. If text is not valid, Objects
// returns an error and the objects before the invalid part.
func Objects(text string) ([]map[string]any, error) {
	var all []map[string]any
	lines := json.NewDecoder(strings.NewReader(text))
	for {
		var fields map[string]any
		err := lines.Decode(&fields)
		switch {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return all, fmt.Errorf("parse %q: %w", text, err)
		}
		all = append(all, fields)
	}
}

// Numbers returns the number at key in each of the objects, multiplied by scale. If an object has no
// number there, Numbers returns an error and the numbers of the objects before.
func Numbers(objects []map[string]any, key string, scale float64) ([]float64, error) {
	var xs []float64
	for _, fields := range objects {
		x, ok := fields[key].(float64)
		if !ok {
			return xs, fmt.Errorf("no number %q in %v", key, fields)
		}
		xs = append(xs, x*scale)
	}
	return xs, nil
}
