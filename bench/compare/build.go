package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// built is the programs that are compared, in a temporary directory.
type built struct {
	dir       string
	missing   []string // what is not installed
	libfabric bool     // the Go programs have the transport
}

// path is where a program was built, or "" if what it needs is missing.
func (b *built) path(name string) string {
	p := filepath.Join(b.dir, name)
	if _, err := os.Stat(p); err != nil {
		return ""
	}
	return p
}

// build builds gorun, the Go programs, and what can be of the C programs.
func build(ctx context.Context) (b *built, err error) {
	root, err := output(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/weft-hpc/weft")
	if err != nil {
		return nil, err
	}
	b = new(built)
	if b.dir, err = os.MkdirTemp("", "weft-compare-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(b.dir))
		}
	}()
	root = strings.TrimSpace(root)
	b.findLibfabric(ctx)
	programs := []string{"./cmd/gorun", "./bench", "./bench/peers/hello"}
	if _, err = output(ctx, "go", append([]string{"build", "-C", root, "-o", b.dir}, programs...)...); err != nil {
		return nil, err
	}
	if b.libfabric {
		// A program of its own, so that the library does not count in the others.
		_, err = output(ctx, "go", "build", "-C", root, "-tags", "libfabric", "-o", filepath.Join(b.dir, "bench.libfabric"), "./bench")
		if err != nil {
			return nil, err
		}
	}
	if err = b.buildRMA(ctx, root); err != nil {
		return nil, err
	}
	for _, c := range []struct{ compiler, source, program string }{
		{"gcc", "c/tcp_pingpong.c", "tcp_pingpong"},
		{"mpicc.openmpi", "peers/mpi_pingpong.c", "pingpong.openmpi"},
		{"mpicc.openmpi", "peers/mpi_hello.c", "hello.openmpi"},
		{"mpicc.mpich", "peers/mpi_hello.c", "hello.mpich"},
	} {
		if !b.has(c.compiler) {
			continue
		}
		source := filepath.Join(root, "bench", filepath.FromSlash(c.source))
		if _, err := output(ctx, c.compiler, "-O2", "-o", filepath.Join(b.dir, c.program), source); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// has says whether a command is installed, and remembers if not.
func (b *built) has(command string) bool {
	if _, err := exec.LookPath(command); err == nil {
		return true
	}
	for _, m := range b.missing {
		if m == command {
			return false
		}
	}
	b.missing = append(b.missing, command)
	return false
}

// describe prints what was measured on what.
func (b *built) describe(ctx context.Context, w io.Writer, s *settings) error {
	versions := []string{}
	for _, command := range [][]string{
		{filepath.Join(b.dir, "gorun"), "-version"}, {"mpirun.openmpi", "--version"}, {"mpichversion"}, {"fi_info", "--version"}, {"gcc", "--version"},
	} {
		if !filepath.IsAbs(command[0]) && !b.has(command[0]) {
			continue
		}
		out, err := output(ctx, command[0], command[1:]...)
		if err != nil {
			return err
		}
		line, _, _ := strings.Cut(out, "\n")
		versions = append(versions, strings.Join(strings.Fields(line), " "))
	}
	fmt.Fprintf(w, "%s, %d cores; %s.\n", processor(), runtime.NumCPU(), strings.Join(versions, "; "))
	fmt.Fprintf(w, "Medians of %d rounds, their range in brackets; the sides took turns.\n", s.rounds)
	if len(b.missing) > 0 {
		fmt.Fprintf(w, "Not installed, and so left out: %s.\n", strings.Join(b.missing, ", "))
	}
	fmt.Fprintln(w)
	return nil
}

// processor is the model of this machine's.
func processor() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err == nil {
		for line := range strings.Lines(string(info)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				return strings.TrimSpace(value)
			}
		}
	}
	return runtime.GOARCH
}

// output runs a command and returns what it prints.
func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, errs.Bytes())
	}
	return out.String(), nil
}
