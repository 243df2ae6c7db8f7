package crew

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/launcher/proto"
)

// TestStagingNames: every file that is no program stands in the job's directory by
// its name, whether others have its content or programs its name, on the host that
// the files come from and on one that gets them.
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
		prog, other, prog, // three apps
		describe("a/x", "data", 0o600), describe("b/x", "data", 0o600), // one name, one content
		describe("a/e", "", 0o600), describe("a/f", "", 0o700), // two names, one content
		describe("d/copy", "other", 0o600), // a program's content
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
					mine[i].Path = "" // there is none here
				}
			}
			s.want(mine, apps, own)
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
