//go:build linux

package procs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// TestStagingNames checks that the job's directory contains every file that is not a program, under
// its name, even if other files have the same content or programs have the same name. It checks
// this on the host that the files come from, and on a host to which they are copied.
func TestStagingNames(t *testing.T) {
	src := t.TempDir()
	describe := func(name, text string, mode uint32) proto.File {
		path := filepath.Join(src, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), os.FileMode(mode)))
		sum, size, err := HashFile(path)
		require.NoError(t, err)
		return proto.File{Hash: sum, Size: size, Mode: mode, Name: filepath.Base(path), Path: path}
	}
	prog, other := describe("p/x", "program", 0o700), describe("q/prog", "other", 0o700)
	files := []proto.File{
		prog, other, prog, // the programs of the three apps below that have Staged set
		describe("a/x", "data", 0o600), describe("b/x", "data", 0o600), // same name, same content
		describe("a/e", "", 0o600), describe("a/f", "", 0o700), // two names, same content
		describe("d/copy", "other", 0o600), // same content as a program
	}
	apps := []proto.App{{Staged: prog.Hash}, {Staged: other.Hash}, {}, {Staged: prog.Hash}}
	for name, own := range map[string]bool{"own": true, "other host": false} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			s := &staging{id: "job", watchdog: &Watchdog{}}
			defer s.close()
			text := make(map[string][]byte)
			mine := make([]proto.File, len(files))
			for i, f := range files {
				b, err := os.ReadFile(f.Path)
				require.NoError(t, err)
				text[f.Hash], mine[i] = b, f
				if !own {
					mine[i].Path = "" // this host has no such file
				}
			}
			s.register(mine, apps, own)
			need := s.missing()
			require.Len(t, need, map[bool]int{true: 0, false: 4}[own])
			for i, h := range need {
				done, err := s.store(proto.FilePart{Hash: h, Data: text[h], Last: i == len(need)-1})
				require.NoError(t, err)
				require.Equal(t, i == len(need)-1, done)
			}
			require.NoError(t, s.link())
			for name, want := range map[string]string{"x": "data", "e": "", "f": "", "copy": "other"} {
				got, err := os.ReadFile(filepath.Join(s.dir, name))
				require.NoError(t, err)
				require.Equal(t, want, string(got), name)
			}
			for _, p := range []proto.File{prog, other} {
				got, err := os.ReadFile(s.path(p.Hash))
				require.NoError(t, err)
				require.Equal(t, string(text[p.Hash]), string(got))
				st, err := os.Stat(s.path(p.Hash))
				require.NoError(t, err)
				require.NotZero(t, st.Mode()&0o100)
			}
		})
	}
}

// TestInPlace checks that a program on this host is used instead of a copy only if it has the same
// content, is executable, and can be changed by no user except root and this one. Another file may
// be changeable by other users.
func TestInPlace(t *testing.T) {
	const other = 65534
	base, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	if !trusted(base) {
		t.Skip(base + " can be changed by other users")
	}
	chown := func(t *testing.T, path string) {
		if os.Geteuid() != 0 {
			t.Skip("only root can give files away")
		}
		require.NoError(t, os.Lchown(path, other, other))
	}
	for name, c := range map[string]struct {
		change func(t *testing.T, dir, file string)
		used   bool
	}{
		"ours":                {func(*testing.T, string, string) {}, true},
		"group's":             {func(t *testing.T, _, file string) { require.NoError(t, os.Chmod(file, 0o720)) }, false},
		"others'":             {func(t *testing.T, _, file string) { require.NoError(t, os.Chmod(file, 0o702)) }, false},
		"sticky":              {func(t *testing.T, _, file string) { require.NoError(t, unix.Chmod(file, 0o1702)) }, false},
		"group's directory":   {func(t *testing.T, dir, _ string) { require.NoError(t, os.Chmod(dir, 0o770)) }, false},
		"others' directory":   {func(t *testing.T, dir, _ string) { require.NoError(t, os.Chmod(dir, 0o707)) }, false},
		"parent":              {func(t *testing.T, dir, _ string) { require.NoError(t, os.Chmod(filepath.Dir(dir), 0o777)) }, false},
		"sticky directory":    {func(t *testing.T, dir, _ string) { require.NoError(t, unix.Chmod(dir, 0o1777)) }, true},
		"sticky parent":       {func(t *testing.T, dir, _ string) { require.NoError(t, unix.Chmod(filepath.Dir(dir), 0o1777)) }, true},
		"another's":           {func(t *testing.T, _, file string) { chown(t, file) }, false},
		"another's in sticky": {func(t *testing.T, dir, file string) { require.NoError(t, unix.Chmod(dir, 0o1777)); chown(t, file) }, false},
		"another's directory": {func(t *testing.T, dir, _ string) { chown(t, dir) }, false},
		"another's sticky":    {func(t *testing.T, dir, _ string) { require.NoError(t, unix.Chmod(dir, 0o1755)); chown(t, dir) }, false},
		"not executable":      {func(t *testing.T, _, file string) { require.NoError(t, os.Chmod(file, 0o600)) }, false},
		"other content":       {func(t *testing.T, _, file string) { require.NoError(t, os.WriteFile(file, []byte("PROGRAM"), 0o700)) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "parent", "dir")
			require.NoError(t, os.MkdirAll(dir, 0o755))
			file := filepath.Join(dir, "prog")
			require.NoError(t, os.WriteFile(file, []byte("program"), 0o700))
			sum, size, err := HashFile(file)
			require.NoError(t, err)
			link := filepath.Join(t.TempDir(), "link")
			require.NoError(t, os.Symlink(file, link))
			c.change(t, dir, file)
			for _, path := range []string{file, link} { // for a link, the path of the file itself is used
				f := proto.File{Hash: sum, Size: size, Mode: 0o700, Name: "prog", Path: path}
				s := &staging{id: "job", watchdog: &Watchdog{}}
				s.register([]proto.File{f}, []proto.App{{Staged: sum}}, false)
				if c.used {
					file, err := filepath.EvalSymlinks(file)
					require.NoError(t, err)
					require.Equal(t, file, s.path(sum))
					require.Empty(t, s.missing())
				} else {
					require.Empty(t, s.path(sum))
					require.Equal(t, []string{sum}, s.missing())
				}
				s = &staging{id: "job", watchdog: &Watchdog{}}
				s.register([]proto.File{f}, []proto.App{{Staged: sum}}, true)
				require.Equal(t, path, s.path(sum), "the file comes from this host")
			}
		})
	}
	data := filepath.Join(base, "data") // other users may change a file that is not a program
	require.NoError(t, os.WriteFile(data, []byte("data"), 0o600))
	require.NoError(t, os.Chmod(data, 0o666))
	sum, size, err := HashFile(data)
	require.NoError(t, err)
	require.Equal(t, data, inPlace(proto.File{Hash: sum, Size: size, Mode: 0o600, Path: data}))

	require.Empty(t, inPlace(proto.File{}))
	require.Empty(t, inPlace(proto.File{Path: base + "/none"}))
	require.Empty(t, inPlace(proto.File{Path: base}))
	require.NoError(t, os.Symlink(base, base+"/link"))
	require.False(t, trusted(base+"/link"))
}
