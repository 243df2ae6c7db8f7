//go:build linux

package launcher

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/launcher/job"
)

// libfabricJob returns a job of one rank that may use the transport libfabric.
func libfabricJob(t *testing.T, program string) *job.Job {
	t.Helper()
	j := testJob(1)
	j.Apps[0].Program = program
	j.Params = &params.Set{}
	require.NoError(t, j.Params.Set("transport.use", "tcp,libfabric", params.FromFlag))
	return j
}

// commands returns a directory that a test sets as PATH. The directory has a command for each
// element of scripts, which maps its name to the text of a shell script, and a link to each command
// of this machine that own names.
func commands(t *testing.T, scripts map[string]string, own ...string) string {
	t.Helper()
	dir := t.TempDir()
	for name, script := range scripts {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	}
	for _, name := range own {
		path, err := exec.LookPath(name)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(dir, name)))
	}
	return dir
}

// TestBuildTags: gorun must build a program with the build tag libfabric if pkg-config finds
// libfabric, cgo is on, and the user has set no tags. If the user has set tags, or the job does not
// want libfabric, it must build the program without the tag. Otherwise it must fail. The program
// prints whether it has the tag.
func TestBuildTags(t *testing.T) {
	found, none := map[string]string{"pkg-config": "exit 0"}, map[string]string{"pkg-config": "exit 1"}
	for _, c := range []struct {
		name    string
		scripts map[string]string
		env     string // NAME=VALUE, a variable for the go command
		wanted  bool   // the job may use the transport libfabric
		out     string // the word that the program prints before "libfabric"
		// says is the error that gorun must print instead of building the program. If it is "",
		// gorun must build the program.
		says string
	}{
		{"found", found, "CGO_ENABLED=1", false, "with", ""},
		{"found and wanted", found, "CGO_ENABLED=1", true, "with", ""},
		{"own tags", found, "GOFLAGS=-tags=other", true, "without", ""},
		{"no cgo", found, "CGO_ENABLED=0", false, "without", ""},
		{"no cgo but wanted", found, "CGO_ENABLED=0", true, "", "transport libfabric: cgo is off: CGO_ENABLED is 0, or there is no C compiler"},
		{"none", none, "CGO_ENABLED=1", false, "without", ""},
		{"none but wanted", none, "CGO_ENABLED=1", true, "",
			"transport libfabric: pkg-config does not find libfabric; install libfabric-dev (Debian, Ubuntu) or libfabric-devel (Fedora, RHEL)"},
		{"no pkg-config", nil, "CGO_ENABLED=1", true, "",
			"transport libfabric: there is no pkg-config to find libfabric with; install pkg-config, and libfabric-dev (Debian, Ubuntu) or libfabric-devel (Fedora, RHEL)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("PATH", commands(t, c.scripts, "go", "gcc", "sh"))
			t.Setenv("GOFLAGS", "")
			name, value, _ := strings.Cut(c.env, "=")
			t.Setenv(name, value)
			j := libfabricJob(t, "./testdata/tagged")
			if !c.wanted {
				j.Params = nil
			}
			res, out, stderr := runJob(t, j)
			if c.says != "" {
				require.Equal(t, 1, res.ExitCode)
				require.Equal(t, "gorun: cannot build ./testdata/tagged: "+c.says+"\n", stderr)
				return
			}
			require.Zero(t, res.ExitCode, stderr)
			require.Equal(t, c.out+" libfabric\n", out)
		})
	}
}

// TestMissingLibrary runs C programs whose shared library is removed after linking. If that library
// is libfabric.so.1, gorun must name it and the package to install. If it is another library, gorun
// must not name a package. The programs search for libraries in one directory only, so they do not
// find the machine's own libfabric.
func TestMissingLibrary(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "main.c")
	require.NoError(t, os.WriteFile(source, []byte("int f(void);\nint main(void) { return f(); }\n"), 0o600))
	libc, err := exec.Command("gcc", "-print-file-name=libc.so.6").Output()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(strings.TrimSpace(string(libc)), filepath.Join(dir, "libc.so.6")))
	link := func(soname string) string {
		lib, program := filepath.Join(dir, soname), filepath.Join(dir, soname+".program")
		code := filepath.Join(dir, "lib.c")
		require.NoError(t, os.WriteFile(code, []byte("int f(void) { return 127; }\n"), 0o600))
		for _, args := range [][]string{{"-shared", "-fPIC", "-Wl,-soname," + soname, "-o", lib, code}, {"-o", program, source, lib, "-Wl,-z,nodefaultlib,-rpath," + dir}} {
			out, err := exec.Command("gcc", args...).CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
		return program
	}
	const says = "rank 0 found no libfabric.so.1; install libfabric1 (Debian, Ubuntu) or libfabric (Fedora, RHEL) (exit code 127): "
	program := link("libfabric.so.1")
	for _, lost := range []bool{false, true} {
		if lost {
			require.NoError(t, os.Remove(filepath.Join(dir, "libfabric.so.1")))
		}
		for _, files := range []bool{false, true} {
			j := testJob(2)
			j.Apps[0].Program = program
			if files {
				j.OutputDir = t.TempDir()
			}
			res, _, stderr := runJob(t, j)
			require.Equal(t, 127, res.ExitCode)
			require.Equal(t, lost, strings.Contains(strings.Replace(stderr, "rank 1", "rank 0", 1), says), stderr)
		}
	}
	other := link("libother.so.1")
	require.NoError(t, os.Remove(filepath.Join(dir, "libother.so.1")))
	j := testJob(1)
	j.Apps[0].Program = other
	res, _, stderr := runJob(t, j)
	require.Equal(t, 127, res.ExitCode)
	require.Contains(t, stderr, "rank 0 exited with code 127")
	require.NotContains(t, stderr, "install")
}

func TestVerboseReachesTheRanks(t *testing.T) {
	for use, says := range map[string]string{"tcp": "rank i listens on 127.0.0.1, port ", "shm": "the ranks share memory"} {
		for _, verbose := range []bool{false, true} {
			j := testJob(1)
			j.Verbose, j.Params = verbose, &params.Set{}
			require.NoError(t, j.Params.Set("transport.use", use, params.FromFlag))
			j.Apps[0].Program, j.Apps[0].Args = "env", nil
			_, out, stderr := runJob(t, j)
			require.Equal(t, verbose, strings.Contains(out, "\nWEFT_VERBOSE=1\n"), out)
			require.Equal(t, verbose, strings.Contains(stderr, says), stderr)
		}
	}
}

// TestSegmentsOfKilledRanks: a rank leaves two files in /dev/shm and is killed. The name of the
// first file has the form of names of libfabric's provider shm, and that of the second has not. If
// the job may use libfabric, gorun must remove the first file. In all other cases it must leave the
// files.
func TestSegmentsOfKilledRanks(t *testing.T) {
	for _, wanted := range []bool{true, false} {
		j := testJob(1)
		if wanted {
			j = libfabricJob(t, "")
		}
		j.Apps[0].Program = "sh"
		j.Apps[0].Args = []string{"-c", "echo > /dev/shm/$$:0:0; echo > /dev/shm/$$.other; echo $$; kill -KILL $$"}
		res, out, stderr := runJob(t, j)
		require.Equal(t, 137, res.ExitCode, stderr)
		segment := filepath.Join("/dev/shm", strings.TrimSpace(out)+":0:0")
		if wanted {
			require.NoFileExists(t, segment)
		} else {
			require.NoError(t, os.Remove(segment))
		}
		require.NoError(t, os.Remove(filepath.Join("/dev/shm", strings.TrimSpace(out)+".other")))
	}
}
