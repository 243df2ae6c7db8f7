package job

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/params"
)

// writeUserFile writes a user's file, and returns the environment in which gorun finds it.
func writeUserFile(t *testing.T, doc string) (path string, environ []string) {
	t.Helper()
	dir := t.TempDir()
	path = filepath.Join(dir, "weft", "config.toml")
	require.NoError(t, os.Mkdir(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte(doc), 0o600))
	return path, []string{"XDG_CONFIG_HOME=" + dir, "HOME=/no/such"}
}

// TestUserFile: the environment, the job file and the flags override the user's file.
func TestUserFile(t *testing.T) {
	path, env := writeUserFile(t, `
[job]
timeout = "1m"
stdin = "all"
bind = "core"
grace = "5s"
rankfile = "ranks"
[env]
A = "user"
B = "user"
[transport]
tcp.poll = "1ms"
tcp.interface = "user"
`)
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(path), "ranks"), []byte("rank 0=localhost slot=0\n"), 0o600))
	file := writeFile(t, "[job]\nstdin = \"none\"\n[env]\nB = \"file\"\n")
	env = append(env, "WEFT_JOB_BIND=numa", "WEFT_TRANSPORT_TCP_POLL=2ms")
	j := parse(t, env, "-config", file, "-timeout", "3m", "x")

	require.Equal(t, 3*time.Minute, j.Timeout)
	require.Equal(t, StdinNone, j.Stdin)
	require.Equal(t, BindNUMA, j.Bind)
	require.Equal(t, 5*time.Second, j.Grace)
	require.Equal(t, filepath.Join(filepath.Dir(path), "ranks"), j.Rankfile)
	require.Equal(t, params.FromUser, j.Source["job.grace"])
	require.Equal(t, params.FromEnv, j.Source["job.bind"])
	require.Equal(t, []EnvVar{{"A", "user"}, {"B", "file"}}, j.Env)
	require.Equal(t, params.Value{Text: "2ms", Source: params.FromEnv}, j.Params.Get("transport.tcp.poll"))
	require.Equal(t, params.Value{Text: "user", Source: params.FromUser}, j.Params.Get("transport.tcp.interface"))
}

func TestUserFilePath(t *testing.T) {
	for _, test := range []struct {
		xdg, home, want string
	}{
		{"/c", "/h", "/c/weft/config.toml"},
		{"", "/h", "/h/.config/weft/config.toml"},
		{"relative", "/h", "/h/.config/weft/config.toml"},
		{"", "", ""},
	} {
		require.Equal(t, test.want, userFilePath(map[string]string{"XDG_CONFIG_HOME": test.xdg, "HOME": test.home}))
	}
	parse(t, []string{"HOME=" + t.TempDir()}, "x") // there is no file
}

func TestUserFileErrors(t *testing.T) {
	for doc, want := range map[string]string{
		"[job]\ntimout = \"1m\"\n":      `:2:1: job.timout: unknown key; did you mean "timeout"?`,
		"[[app]]\nprogram = \"x\"\n":    ":1:3: app: expected in a job file (-config), found in the user's file for all jobs",
		"[[host]]\nname = \"a\"\n":      ":1:3: host: expected in a job file (-config), found in the user's file for all jobs",
		"[job]\nnp = 3\n":               ":2:6: job.np: expected in a job file (-config), found in the user's file for all jobs",
		"[job]\nrankfile = \"no\"\n":    `:2:12: job.rankfile: `,
		"[launcher]\nkind = \"dial\"\n": `:2:8: launcher.kind: `,
	} {
		path, env := writeUserFile(t, doc)
		_, _, err := Parse([]string{"x"}, env)
		require.ErrorContains(t, err, path+want)
	}
	path, env := writeUserFile(t, "")
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Mkdir(path, 0o700))
	_, _, err := Parse([]string{"x"}, env)
	require.EqualError(t, err, path+":1:1: cannot read the user's file: is a directory")
}
