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

// startError is why a program cannot be started, and gorun's exit code then.
type startError struct {
	code int
	msg  string
}

func (e *startError) Error() string { return e.msg }

// codeOf is gorun's exit code for an error.
func codeOf(err error) int {
	var se *startError
	if errors.As(err, &se) {
		return se.code
	}
	return proto.ExitFailed
}

// programs finds or builds what the apps of a job run: one executable each.
type programs struct {
	dir    string // of what was built; "" until something is
	stderr io.Writer
	newDir func() (string, error)
	mark   string            // the job's, in the environment of go build
	built  map[string]string // by the program's name

	libfabric bool // the job wants the transport
}

// source is a Go package, or a file of one, for go build.
type source struct{ dir, what string }

// resolve returns the path of the executable for a program's name. If find returns a
// source, resolve builds it.
func (p *programs) resolve(ctx context.Context, app job.App, path string) (string, error) {
	exe, src, err := find(ctx, app, path)
	if err != nil || src == nil {
		return exe, err
	}
	return p.build(ctx, app.Program, src.dir, src.what)
}

// find returns the path of the executable for a program's name, or the source to build it
// from. It builds nothing.
//
//	an executable file with a slash, or a name on PATH  → itself
//	a .go file, a directory with .go files              → what go build makes of it
//	an import path of the module around us              → what go build makes of it
func find(ctx context.Context, app job.App, path string) (exe string, src *source, err error) {
	name := app.Program
	if name == "" {
		return "", nil, &startError{proto.ExitUsage, "no program"}
	}
	if !strings.Contains(name, "/") && !strings.HasSuffix(name, ".go") && name != "." && name != ".." {
		exe, err = lookPath(name, path)
		return exe, nil, err
	}
	full := name
	if _, err := os.Stat(full); err != nil && !filepath.IsAbs(name) && app.Wdir != "" {
		full = filepath.Join(app.Wdir, name)
	}
	st, err := os.Stat(full)
	switch {
	case err == nil && st.IsDir():
		if m, _ := filepath.Glob(filepath.Join(globEscape(full), "*.go")); len(m) == 0 {
			return "", nil, &startError{proto.ExitNotExec, name + ": is a directory without Go files"}
		}
		return "", &source{full, "."}, nil
	case err == nil && strings.HasSuffix(name, ".go"):
		return "", &source{filepath.Dir(full), filepath.Base(full)}, nil
	case err == nil:
		if err := executable(full, st); err != nil {
			return "", nil, err
		}
		abs, err := filepath.Abs(full) // a rank starts in its own directory
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

// lookPath finds a name on PATH, as a shell does: what is there but cannot be
// executed counts only where nothing else is.
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
			msg += "; for the Go package in that directory say ./" + name
		} else {
			msg += " on PATH; for the file in this directory say ./" + name
		}
	}
	return "", &startError{proto.ExitNotFound, msg}
}

func executable(path string, st os.FileInfo) error {
	if !st.Mode().IsRegular() {
		return &startError{proto.ExitNotExec, path + ": not a regular file"}
	}
	if err := unix.Access(path, unix.X_OK); err != nil {
		return &startError{proto.ExitNotExec, path + ": " + err.Error()}
	}
	return nil
}

// isImportPath asks the go command whether a name with slashes, which is no
// file, is a main package that it knows.
func isImportPath(ctx context.Context, name string) bool {
	if strings.HasPrefix(name, "/") || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "-") {
		return false
	}
	out, err := exec.CommandContext(ctx, "go", "list", "-find", "-f", "{{.Name}}", "--", name).Output()
	return err == nil && strings.TrimSpace(string(out)) == "main"
}

// build runs go build in dir; the errors of the compiler go to stderr.
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

// goCommand is a call of the go command. Where gorun is killed, its watchdog
// knows the compilers by the mark, and what they have written stands in the
// directory that it removes.
func (p *programs) goCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), p.mark, "GOTMPDIR="+p.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) } // so that go removes its own files
	cmd.WaitDelay = 2 * time.Second
	return cmd
}

// isArchive says whether go build made a library, as it does of a package that
// is not main.
func isArchive(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return true // of a package without code it makes nothing
	}
	defer func() { _ = f.Close() }()
	var head [8]byte
	_, err = io.ReadFull(f, head[:])
	return err != nil || bytes.HasPrefix(head[:], []byte("!<arch>"))
}

func globEscape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
