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
)

// Programs are what is measured, built in a temporary directory.
type Programs struct {
	Root    string // of the project
	Missing []string

	dir string
}

// Root is the project's folder.
func Root(ctx context.Context) (string, error) {
	root, err := Output(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/weft-hpc/weft")
	return strings.TrimSpace(root), err
}

// NewPrograms builds gorun and Go packages of the project. The caller closes what
// it returns.
func NewPrograms(ctx context.Context, packages ...string) (*Programs, error) {
	root, err := Root(ctx)
	if err != nil {
		return nil, err
	}
	p := &Programs{Root: root}
	if p.dir, err = os.MkdirTemp("", "weft-contest-"); err != nil {
		return nil, err
	}
	if err := p.Go(ctx, append([]string{"./cmd/gorun"}, packages...)...); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Close removes the programs.
func (p *Programs) Close() error { return os.RemoveAll(p.dir) }

// Path is where a program is; "" if it was not built.
func (p *Programs) Path(name string) string {
	path := filepath.Join(p.dir, name)
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// Go builds packages of the project, each under the name of its folder.
func (p *Programs) Go(ctx context.Context, packages ...string) error {
	_, err := Output(ctx, "go", append([]string{"build", "-C", p.Root, "-o", p.dir}, packages...)...)
	return err
}

// GoAs builds one package under a name, with flags.
func (p *Programs) GoAs(ctx context.Context, name, pkg string, flags ...string) error {
	args := append([]string{"build", "-C", p.Root, "-o", filepath.Join(p.dir, name)}, flags...)
	_, err := Output(ctx, "go", append(args, pkg)...)
	return err
}

// C builds a program of files below bench/, and of flags after them. Without the
// compiler there is no program, and no error.
func (p *Programs) C(ctx context.Context, compiler, name string, sources []string, flags ...string) error {
	if !p.Has(compiler) {
		return nil
	}
	args := []string{"-O2", "-o", filepath.Join(p.dir, name)}
	for _, s := range sources {
		args = append(args, filepath.Join(p.Root, "bench", filepath.FromSlash(s)))
	}
	_, err := Output(ctx, compiler, append(args, flags...)...)
	return err
}

// MPI builds the C loops of bench/peers/mpi with mpicc.LIBRARY, as
// bench.LIBRARY and hello.LIBRARY, where that compiler is installed.
func (p *Programs) MPI(ctx context.Context, library string) error {
	var loops []string
	for _, name := range []string{"bench", "p2p", "collectives", "onesided", "overlap", "threads", "apps"} {
		loops = append(loops, "peers/mpi/"+name+".c")
	}
	compiler := "mpicc." + library
	return errors.Join(p.C(ctx, compiler, "bench."+library, loops, "-pthread"), p.C(ctx, compiler, "hello."+library, []string{"peers/mpi/hello.c"}))
}

// Has says whether a command is installed, and remembers in Missing if not.
func (p *Programs) Has(command string) bool {
	if _, err := exec.LookPath(command); err == nil {
		return true
	}
	if !slices.Contains(p.Missing, command) {
		p.Missing = append(p.Missing, command)
	}
	return false
}

// Machine is what a run was made on, for people to read.
type Machine struct {
	Processor string
	Cores     int // that this process may use
	Kernel    string
	Versions  []string
	Date      string
}

// String is the machine in one line.
func (m Machine) String() string {
	return fmt.Sprintf("%s, %d cores, %s; %s; %s", m.Processor, m.Cores, m.Kernel, strings.Join(m.Versions, ", "), m.Date)
}

// Machine describes this one with the versions of what is installed.
func (p *Programs) Machine(ctx context.Context) Machine {
	m := Machine{Processor: processor(), Cores: runtime.NumCPU(), Kernel: runtime.GOOS, Date: time.Now().Format(time.DateOnly)}
	first := func(name string, args ...string) string {
		out, _ := Output(ctx, name, args...) // what does not answer is left out
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
