package launcher

import (
	"context"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weft-hpc/weft/launcher/internal/procs"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/job"
)

// program is the executable of an app.
type program struct {
	path  string // absolute path of the executable on this host
	arg0  string // argument 0 of the ranks: the name that the user wrote or, for a built program, its path
	built bool   // gorun has built the program, so other hosts do not have it
	// file describes the executable to hosts that may need a copy. It is nil if gorun does not copy
	// the executable, or has not described it yet.
	file *proto.File
}

// findPrograms finds or builds the programs of all apps, and sets s.programs. id is the job id. A
// terminating signal or the end of s.ctx ends it early, with an error.
func (s *session) findPrograms(id string) error {
	j := s.job
	found := &programs{stderr: s.stdio.Err, newDir: s.tempDir, mark: markOf(id), libfabric: wantsLibfabric(j.Params)}
	ctx, stop := signalContext(s.ctx, s.signals)
	var err error
	for _, app := range j.Apps {
		var p program
		if p.path, err = found.resolve(ctx, j, app); err != nil {
			break
		}
		p.arg0 = app.Program
		p.built = found.dir != "" && strings.HasPrefix(p.path, found.dir)
		if p.built {
			p.arg0 = p.path
		}
		s.programs = append(s.programs, p)
		if j.NP() > 1 && !p.built && !j.Dials() && ofOpenMPI(p.path) {
			s.printLine("warning: " + app.Program + " is linked with Open MPI, which does not know gorun: each rank would be a job of its own; start the program with mpirun")
		}
	}
	if sig := stop(); sig != 0 {
		return endedBeforeStart(sig)
	}
	if err == nil && s.ctx.Err() != nil {
		err = context.Cause(s.ctx)
	}
	if err == nil && found.dir != "" {
		s.verbose("built after %v", s.since())
	}
	return err
}

// pathOf returns the PATH in which gorun searches for the program of an app: the one that the job
// sets for the ranks of the app, or else gorun's own.
func pathOf(j *job.Job, app job.App) string {
	if path, ok := lookupEnv(appEnv(j, app, nil), "PATH"); ok {
		return path
	}
	return os.Getenv("PATH")
}

// describePrograms adds to m the programs with their environments, and the files that gorun copies
// to hosts that lack them. It may read large files: see interruptible.
func (r *run) describePrograms(m *proto.Prepare) error {
	j := r.job
	for i, app := range j.Apps {
		p := &r.programs[i]
		wdir, err := filepath.Abs(app.Wdir)
		if err != nil {
			return err
		}
		a := proto.App{
			Name: app.Program, Path: p.path, Argv: append([]string{p.arg0}, app.Args...),
			Wdir: wdir, MaxProcs: j.GOMAXPROCS,
		}
		base := os.Environ()
		if !r.onlyThisHost() {
			base = slices.DeleteFunc(base, ofThisHost)
		}
		a.Env = appEnv(j, app, base)
		if v, ok := lookupEnv(a.Env, "GOMAXPROCS"); ok && v != "" && j.GOMAXPROCS == 0 {
			a.KeepProc = true
		} else {
			a.Env = withoutEnv(a.Env, "GOMAXPROCS")
		}
		if r.onlyThisHost() {
			if app.Wdir != "" {
				a.Env = procs.MergeEnv(a.Env, []string{"PWD=" + wdir})
			}
		} else if p.built || j.Stage {
			if p.file == nil {
				if p.file, err = r.describeFile(p.path); err != nil {
					return err
				}
			}
			a.Staged = p.file.Hash
			m.Files = append(m.Files, *p.file)
		}
		m.Apps = append(m.Apps, a)
	}
	named := make(map[string]*proto.File)
	for _, name := range j.StageFiles {
		f, err := r.describeFile(name)
		if err != nil {
			return err
		}
		if other := named[f.Name]; other != nil && other.Hash != f.Hash {
			return &startError{proto.ExitUsage, fmt.Sprintf("-stage-files: %s and %s differ, but both would be %s on the hosts", other.Path, f.Path, f.Name)}
		}
		named[f.Name] = f
		m.Files = append(m.Files, *f)
	}
	return nil
}

// hashFile returns the hash and the size of a file. Tests replace it.
var hashFile = procs.HashFile

// describeFile describes a file that gorun copies to hosts. A signal can interrupt it: see
// interruptible.
func (s *session) describeFile(name string) (*proto.File, error) {
	var f *proto.File
	err := s.interruptible(func() (err error) {
		f, err = describeFile(name)
		return err
	})
	if err != nil {
		return nil, err // and not f, which the function may still set: it may continue in the background
	}
	return f, nil
}

// describeFile reads a file and returns its hash, size, permissions and absolute path.
func describeFile(name string) (*proto.File, error) {
	abs, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	st, err := os.Stat(abs)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file, so gorun cannot copy it to the hosts", name)
	}
	sum, size, err := hashFile(abs)
	if err != nil {
		return nil, err
	}
	return &proto.File{Hash: sum, Size: size, Mode: uint32(st.Mode().Perm()), Name: filepath.Base(abs), Path: abs}, nil
}

// staged is a message to [run.control]: gorun could not read a file that it sends to hosts, or the
// run ended before gorun had sent the file.
type staged struct {
	group *group // the group that needs the file
	err   error
}

// stage starts the goroutine that sends the files that hosts lack. need holds the hashes of these
// files. If the group does not have one of them, stage ends the run or the spawned group.
func (r *run) stage(g *group, need []string) {
	var files []proto.File
	for _, f := range g.prep.Files {
		if slices.Contains(need, f.Hash) && !slices.ContainsFunc(files, func(g proto.File) bool { return g.Hash == f.Hash }) {
			files = append(files, f)
		}
	}
	if len(files) < len(need) {
		r.failGroup(g, fmt.Errorf("a host asks for a file that the job does not have"))
		return
	}
	for _, f := range files {
		r.stageBytes.Add(f.Size)
	}
	r.verbose("copying %s to the hosts that lack them", plural(len(files), "file"))
	// The goroutine ends when all files are sent, at an error, or when r.stopped ends. [run.close]
	// waits for it.
	r.background.Go(func() {
		for i, f := range files {
			if err := r.sendFile(r.stopped, g.id, f, i == len(files)-1); err != nil {
				r.mail.post(staged{g, err})
				return
			}
		}
	})
}

// partBytes is the largest number of bytes of a file in one message.
const partBytes = 256 << 10

// sendFile sends a file to the hosts of a group in parts. last means that no further file follows. While the
// hosts are slow, sendFile blocks; if ctx ends then, it returns an error. If the contents of the
// file have changed since describeFile, the hosts refuse the file, because its hash differs.
func (r *run) sendFile(ctx context.Context, group int, f proto.File, last bool) error {
	in, err := os.Open(f.Path)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	for left := f.Size; ; {
		buf := make([]byte, min(left, partBytes))
		if _, err := io.ReadFull(in, buf); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
		left -= int64(len(buf))
		if err := r.node.AwaitRoom(ctx); err != nil {
			return err
		}
		r.stagedBytes.Add(int64(len(buf)))
		r.node.Do(proto.FilePart{Group: group, Hash: f.Hash, Last: last && left == 0, Data: buf})
		if left == 0 {
			return nil
		}
	}
}

// ofOpenMPI reports whether a program is linked with Open MPI, whose ranks need PMIx.
func ofOpenMPI(exe string) bool {
	return slices.ContainsFunc(importedLibraries(exe), func(lib string) bool {
		return strings.HasPrefix(lib, "libmpi.so.") && lib != "libmpi.so.12" // libmpi.so.12 is MPICH's
	})
}

// importedLibraries returns the shared libraries with which a program is linked. It returns none if
// the program is not in the ELF format, for example if it is a script.
func importedLibraries(exe string) []string {
	f, err := elf.Open(exe)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	libs, _ := f.ImportedLibraries() // an error means that the program is statically linked, or broken
	return libs
}
