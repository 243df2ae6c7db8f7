package launcher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/job"
	"golang.org/x/sys/unix"
)

// startError says why a job cannot be started. code is gorun's exit code.
type startError struct {
	code int
	msg  string
}

func (e *startError) Error() string { return e.msg }

// codeOf returns gorun's exit code for an error: that of a startError, or ExitFailed.
func codeOf(err error) int {
	var se *startError
	if errors.As(err, &se) {
		return se.code
	}
	return proto.ExitFailed
}

// programs finds or builds the executables of the apps of a job.
type programs struct {
	dir    string                 // directory of built programs; "": newDir has not made it yet
	stderr io.Writer              // for messages of the compiler
	newDir func() (string, error) // makes the directory whose path becomes dir
	// mark is a variable, NAME=VALUE, in the environment of the go command. By it the watchdog
	// finds that process.
	mark  string
	built map[string]string // paths of built programs, by path of the directory or file that was built

	libfabric bool // the job may use the transport libfabric
}

// source is what go build needs to build a program: dir is the directory in which go build runs,
// and what is its argument, a package or a .go file.
type source struct{ dir, what string }

// resolve returns the absolute path of the executable of an app of j. If the app names Go source,
// resolve builds it. The end of ctx ends the build.
func (p *programs) resolve(ctx context.Context, j *job.Job, app job.App) (string, error) {
	exe, src, err := find(ctx, j, app)
	if err != nil || src == nil {
		return exe, err
	}
	return p.build(ctx, app.Program, src.dir, src.what)
}

// find returns the absolute path of the executable of an app of j, or the source to build it from.
// find builds nothing. A relative path that does not exist in this process's directory is one in
// app.Wdir. The result depends on app.Program:
//
//	a name without a slash, found on PATH ([pathOf])    → the executable
//	the path of an executable file, with a slash        → the executable
//	a .go file, or a directory with .go files           → source for go build
//	the import path of a main package                   → source for go build
//	another absolute path, if gorun waits for agents    → the same path; their hosts check it, because
//	and does not copy programs to them (-stage)           it may be that of a container's image
func find(ctx context.Context, j *job.Job, app job.App) (exe string, src *source, err error) {
	name := app.Program
	if name == "" {
		return "", nil, &startError{proto.ExitUsage, "no program"}
	}
	if !strings.Contains(name, "/") && !strings.HasSuffix(name, ".go") && name != "." && name != ".." {
		exe, err = lookPath(name, pathOf(j, app))
		return exe, nil, err
	}
	full := name
	if _, err := os.Stat(full); err != nil && !filepath.IsAbs(name) && app.Wdir != "" {
		full = filepath.Join(app.Wdir, name)
	}
	st, err := os.Stat(full)
	elsewhere := j.Dials() && !j.Stage && filepath.IsAbs(name)
	switch {
	case err == nil && st.IsDir() && hasGoFiles(full):
		return "", &source{full, "."}, nil
	case err == nil && strings.HasSuffix(name, ".go"):
		return "", &source{filepath.Dir(full), filepath.Base(full)}, nil
	case elsewhere:
		return name, nil, nil
	case err == nil && st.IsDir():
		return "", nil, &startError{proto.ExitNotExec, name + ": is a directory without Go files"}
	case err == nil:
		if err := executable(full, st); err != nil {
			return "", nil, err
		}
		abs, err := filepath.Abs(full) // ranks may start in another directory
		if err != nil {
			return "", nil, &startError{proto.ExitFailed, err.Error()}
		}
		return abs, nil, nil
	case !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR):
		return "", nil, &startError{proto.ExitNotExec, err.Error()}
	case isImportPath(ctx, name):
		return "", &source{".", name}, nil
	}
	return "", nil, &startError{proto.ExitNotFound, name + ": no such file or directory"}
}

func hasGoFiles(dir string) bool {
	files, _ := filepath.Glob(filepath.Join(globEscape(dir), "*.go"))
	return len(files) > 0
}

// lookPath searches for a name in the directories of path, as a shell does, and returns the
// absolute path of the file. If all files that it finds cannot be executed, it returns the error of
// the last one.
func lookPath(name, path string) (string, error) {
	var second error
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			dir = "."
		}
		full, err := filepath.Abs(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		st, err := os.Stat(full)
		if err != nil || st.IsDir() {
			continue
		}
		if err := executable(full, st); err != nil {
			second = err
			continue
		}
		return full, nil
	}
	if second != nil {
		return "", second
	}
	msg := name + ": command not found"
	if st, err := os.Stat(name); err == nil {
		if st.IsDir() {
			msg += "; for the Go package in that directory use ./" + name
		} else {
			msg += " on PATH; for the file in this directory use ./" + name
		}
	}
	return "", &startError{proto.ExitNotFound, msg}
}

// executable returns an error unless path is a regular file that this process may execute. st
// describes the file.
func executable(path string, st os.FileInfo) error {
	if !st.Mode().IsRegular() {
		return &startError{proto.ExitNotExec, path + ": not a regular file"}
	}
	if err := unix.Access(path, unix.X_OK); err != nil {
		return &startError{proto.ExitNotExec, path + ": " + err.Error()}
	}
	return nil
}

// isImportPath reports whether name is the import path of a main package. It runs go list to find
// that out. The caller has made sure that there is no file of this name.
func isImportPath(ctx context.Context, name string) bool {
	if strings.HasPrefix(name, "/") || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "-") {
		return false
	}
	out, err := exec.CommandContext(ctx, "go", "list", "-find", "-f", "{{.Name}}", "--", name).Output()
	return err == nil && strings.TrimSpace(string(out)) == "main"
}

// build builds the program name: it runs go build in dir with the argument what, and returns the
// path of the executable. If it has built the same source before, it returns the path from then.
// The compiler writes errors to p.stderr.
func (p *programs) build(ctx context.Context, name, dir, what string) (string, error) {
	key := filepath.Join(dir, what)
	if out, ok := p.built[key]; ok {
		return out, nil
	}
	if p.dir == "" {
		d, err := p.newDir()
		if err != nil {
			return "", &startError{proto.ExitFailed, "cannot build " + name + ": " + err.Error()}
		}
		p.dir = d
		p.built = make(map[string]string)
	}
	base := strings.TrimSuffix(filepath.Base(key), ".go")
	if abs, err := filepath.Abs(dir); err == nil && what == "." {
		base = filepath.Base(abs)
	}
	out := filepath.Join(p.dir, fmt.Sprint(len(p.built)), base)
	if err := os.Mkdir(filepath.Dir(out), 0o700); err != nil {
		return "", &startError{proto.ExitFailed, "cannot build " + name + ": " + err.Error()}
	}
	tags, err := p.buildTags(ctx)
	if err != nil {
		return "", &startError{proto.ExitFailed, "cannot build " + name + ": " + err.Error()}
	}
	args := append([]string{"build", "-C", dir, "-buildvcs=false", "-o", out}, tags...)
	cmd := p.goCommand(ctx, append(args, what)...)
	cmd.Stdout, cmd.Stderr = p.stderr, p.stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		return "", &startError{proto.ExitFailed, "cannot build " + name + ": " + err.Error()}
	}
	if isArchive(out) {
		return "", &startError{proto.ExitFailed, "cannot run " + name + ": it is not a main package"}
	}
	p.built[key] = out
	return out, nil
}

// goCommand returns a command that runs go with args, in a process group of its own. When ctx ends,
// the process group gets SIGINT. If gorun is killed, the watchdog kills go and its compilers, which
// have p.mark in their environment, and removes p.dir, which holds their temporary files.
func (p *programs) goCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), p.mark, "GOTMPDIR="+p.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// At SIGINT the go command removes its temporary files.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 2 * time.Second
	return cmd
}

// isArchive reports whether go build has made an archive, or no file, instead of an executable. go
// build does that if the package is not main.
func isArchive(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return true // go build has succeeded but has written no file, so there is no executable
	}
	defer func() { _ = f.Close() }()
	var head [8]byte
	_, err = io.ReadFull(f, head[:])
	return err != nil || bytes.HasPrefix(head[:], []byte("!<arch>"))
}

func globEscape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
