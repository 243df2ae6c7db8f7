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

// grace is what a launcher that is told to end has for ending its ranks.
const grace = 5 * time.Second

// marker begins the variable that all processes of a command have in common,
// wherever launchers put them: some ranks are in process groups of their own.
const marker = "CONTEST_COMMAND="

// Output runs a command and returns what it prints on stdout, also with an
// error, to which what it prints on stderr is added. When ctx ends first the
// command gets a SIGTERM, and SIGKILL later. After any failure nothing of it is
// left when Output returns.
func Output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	mark := fmt.Sprintf("%s%d.%d.", marker, os.Getpid(), time.Now().UnixNano())
	cmd.Env = append(os.Environ(), mark)
	// A group of its own: a key that interrupts us does not reach it, we do.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = grace
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

// killMarked kills all that is marked, until nothing is left.
func killMarked(mark string) error {
	for range 100 {
		left := marked(mark)
		if len(left) == 0 {
			return nil
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended by itself
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("processes %v do not end", marked(mark))
}

// marked are the ids of the processes whose environment has the mark.
func marked(mark string) []int {
	files, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is well-formed
	var pids []int
	for _, file := range files {
		env, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(append([]byte{0}, env...), []byte("\x00"+mark)) {
			continue // ended meanwhile, or somebody else's
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Objects reads the JSON objects that a benchmark prints, one per size. With an
// error it returns those before it.
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

// Numbers are the scaled values of a key in each of the objects, up to the
// first that lacks it.
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
