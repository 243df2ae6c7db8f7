package contest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/weft-hpc/weft/internal/tempdir"
)

// Programs builds the measured programs in a temporary directory.
type Programs struct {
	Root    string   // absolute path of the project's folder
	Missing []string // commands and packages that are not installed

	dir *tempdir.Dir
}

// Root returns the absolute path of the project's folder.
func Root(ctx context.Context) (string, error) {
	root, err := Output(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/weft-hpc/weft")
	return strings.TrimSpace(root), err
}

// NewPrograms builds gorun and these Go packages of the project. The caller must call Close.
func NewPrograms(ctx context.Context, packages ...string) (*Programs, error) {
	root, err := Root(ctx)
	if err != nil {
		return nil, err
	}
	p := &Programs{Root: root}
	if p.dir, err = tempdir.Make("weft-contest-"); err != nil {
		return nil, err
	}
	if err := p.Go(ctx, append([]string{"./cmd/gorun"}, packages...)...); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Close removes the programs and their directory.
func (p *Programs) Close() error { return p.dir.Remove() }

// Path returns the path of a program. If the program was not built, Path returns "".
func (p *Programs) Path(name string) string {
	path := filepath.Join(p.dir.Path, name)
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// Go builds packages of the project, each under the name of its folder.
func (p *Programs) Go(ctx context.Context, packages ...string) error {
	_, err := Output(ctx, "go", append([]string{"build", "-C", p.Root, "-o", p.dir.Path}, packages...)...)
	return err
}

// GoAs builds one package of the project as a program with this name. flags are further flags of go
// build.
func (p *Programs) GoAs(ctx context.Context, name, pkg string, flags ...string) error {
	args := append([]string{"build", "-C", p.Root, "-o", filepath.Join(p.dir.Path, name)}, flags...)
	_, err := Output(ctx, "go", append(args, pkg)...)
	return err
}

// C builds a program from C files, whose paths are relative to bench/. The flags follow the files on
// the command line. If the compiler is not installed, C builds nothing and returns nil.
func (p *Programs) C(ctx context.Context, compiler, name string, sources []string, flags ...string) error {
	if !p.Has(compiler) {
		return nil
	}
	args := []string{"-O2", "-o", filepath.Join(p.dir.Path, name)}
	for _, s := range sources {
		args = append(args, filepath.Join(p.Root, "bench", filepath.FromSlash(s)))
	}
	_, err := Output(ctx, compiler, append(args, flags...)...)
	return err
}

// MPI builds the C programs of bench/peers/mpi with an MPI library, as bench.LIBRARY and hello.LIBRARY.
// The library's compiler is mpicc.LIBRARY. If it is not installed, MPI builds nothing and returns nil.
func (p *Programs) MPI(ctx context.Context, library string) error {
	var loops []string
	for _, name := range []string{"bench", "p2p", "collectives", "onesided", "overlap", "threads", "apps", "datatypes", "files"} {
		loops = append(loops, "peers/mpi/"+name+".c")
	}
	compiler := "mpicc." + library
	return errors.Join(p.C(ctx, compiler, "bench."+library, loops, "-pthread"), p.C(ctx, compiler, "hello."+library, []string{"peers/mpi/hello.c"}))
}

// Has reports whether a command is installed. If it is not, Has adds the command to p.Missing.
func (p *Programs) Has(command string) bool {
	if _, err := exec.LookPath(command); err == nil {
		return true
	}
	if !slices.Contains(p.Missing, command) {
		p.Missing = append(p.Missing, command)
	}
	return false
}

// Machine describes the machine on which a run has measured.
type Machine struct {
	Processor string
	Cores     int // cores that this process may use
	Kernel    string
	Versions  []string
	Date      string
}

// String describes the machine in one line.
func (m Machine) String() string {
	return fmt.Sprintf("%s, %d cores, %s; %s; %s", m.Processor, m.Cores, m.Kernel, strings.Join(m.Versions, ", "), m.Date)
}

// Machine describes this machine and the versions of the installed programs.
func (p *Programs) Machine(ctx context.Context) Machine {
	m := Machine{Processor: processor(), Cores: runtime.NumCPU(), Kernel: runtime.GOOS, Date: time.Now().Format(time.DateOnly)}
	first := func(name string, args ...string) string {
		out, _ := Output(ctx, name, args...) // if the command fails, its version is left out
		line, _, _ := strings.Cut(out, "\n")
		return strings.Join(strings.Fields(line), " ")
	}
	if release := first("uname", "-r"); release != "" {
		m.Kernel = "Linux " + release
	}
	m.Versions = append(m.Versions, strings.Replace(runtime.Version(), "go", "Go ", 1))
	if commit := first("git", "-C", p.Root, "describe", "--always", "--dirty"); commit != "" {
		m.Versions = append(m.Versions, "weft "+commit)
	}
	for _, peer := range []struct{ name, command, flag string }{
		{"Open MPI", "mpirun.openmpi", "--version"},
		{"MPICH", "mpichversion", "--version"},
		{"libfabric", "fi_info", "--version"},
		{"gcc", "gcc", "--version"},
	} {
		if line := strings.Fields(first(peer.command, peer.flag)); len(line) > 0 {
			m.Versions = append(m.Versions, peer.name+" "+line[len(line)-1])
		}
	}
	return m
}

// processor returns the name of this machine's processor.
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
