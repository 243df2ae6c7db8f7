package job

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
)

// inDir changes to a new directory and makes files there. files alternates between the name and the
// contents of a file.
func inDir(t *testing.T, files ...string) {
	t.Helper()
	t.Chdir(t.TempDir())
	for i := 0; i < len(files); i += 2 {
		require.NoError(t, os.MkdirAll(filepath.Dir(files[i]), 0o700))
		require.NoError(t, os.WriteFile(files[i], []byte(files[i+1]), 0o600))
	}
}

// shownHosts returns hosts as text for comparisons: "name:slots/max@user" for each, without the
// parts that are not set.
func shownHosts(list []hosts.Host) string {
	var words []string
	for _, h := range list {
		text := h.Name
		if h.Slots > 0 {
			text += ":" + strconv.Itoa(h.Slots)
		}
		if h.MaxSlots > 0 {
			text += "/" + strconv.Itoa(h.MaxSlots)
		}
		if h.User != "" {
			text += "@" + h.User
		}
		words = append(words, text)
	}
	return strings.Join(words, " ")
}

func TestHosts(t *testing.T) {
	const (
		none = params.Source("")
		env  = "WEFT_LAUNCHER_HOSTFILE=env"
		ppn  = "WEFT_JOB_SLOTS=6"
	)
	inDir(t,
		"env", "e1\ne2\n", "flag", "f1 slots=4 max_slots=8\nu@f2\n", "dir/beside", "d1:3\nd2\n", "here", "localhost\n::1 slots=2\n",
		"host.toml", "[[host]]\nname = \"h[1-2]\"\nslots = 4\nuser = \"u\"\n[[host]]\nname = \"h3\"\nmax_slots = 2\n",
		"local.toml", "[[host]]\nname = \"localhost\"\nslots = 4\n",
		"slots.toml", "[job]\nslots = 5\n[[host]]\nname = \"a\"\nslots = 4\n[[host]]\nname = \"b\"\n",
		"dir/beside.toml", "[launcher]\nhostfile = \"beside\"\n", "dir/none.toml", "[launcher]\nhostfile = \"\"\n",
	)
	for _, test := range []struct {
		env, args string
		want      string
		from      params.Source
		slots     int
	}{
		{"", "", "", none, 0},
		{"", "-ppn 3", "", none, 3},
		{env, "", "e1 e2", params.FromEnv, 0},
		{env, "-ppn 3", "e1:3 e2:3", params.FromEnv, 3},
		{env + " " + ppn, "", "e1:6 e2:6", params.FromEnv, 6},

		// A file that a flag names overrides other lists, and an empty name means no file.
		{env, "-f flag", "f1:4/8 f2@u", params.FromFlag, 0},
		{env, "-f=", "", none, 0},
		{env, "-config host.toml", "h1:4@u h2:4@u h3/2", params.FromFile, 0},
		{env, "-config dir/none.toml", "", none, 0},
		{"", "-config host.toml -f flag", "f1:4/8 f2@u", params.FromFlag, 0},
		{"", "-config host.toml -f=", "", none, 0},
		{env, "-config dir/beside.toml", "d1:3 d2", params.FromFile, 0},
		{"", "-config dir/beside.toml -f flag", "f1:4/8 f2@u", params.FromFlag, 0},

		// -host selects hosts of -hostfile, and replaces other lists.
		{"", "-host a,b:2,c[1-2]:3", "a b:2 c1:3 c2:3", params.FromFlag, 0},
		{"", "-host a -H b:2,a", "a:2 b:2", params.FromFlag, 0},
		{"", "-f flag -host f2", "f2@u", params.FromFlag, 0},
		{"", "-host f2:3,f1 -f flag", "f2:3@u f1:4/8", params.FromFlag, 0},
		{env, "-host e2:1,x", "e2:1 x", params.FromFlag, 0},
		{"", "-config host.toml -host x,H2", "x h2:4@u", params.FromFlag, 0},
		{"", "-config dir/beside.toml -host d1:1,v@d2", "d1:1 d2@v", params.FromFlag, 0},

		// Slots come from the first of these that gives them: -host, -ppn, the entry of the host in the
		// file, job.slots.
		{"", "-f flag -host f2:3,f1 -ppn 2", "f2:3@u f1:2/8", params.FromFlag, 2},
		{"", "-f flag -ppn 9", "f1:8/8 f2:9@u", params.FromFlag, 9},
		{ppn, "-f flag", "f1:4/8 f2:6@u", params.FromFlag, 6},
		{ppn, "-config slots.toml", "a:4 b:5", params.FromFile, 5},
		{"", "-config slots.toml -ppn 7", "a:7 b:7", params.FromFile, 7},
		{"", "-config slots.toml -host b,c", "b:5 c:5", params.FromFlag, 5},

		// All names of this machine are one host. If it is the only host, job.slots are its slots.
		{"", "-host localhost", "localhost", params.FromFlag, 0},
		{"", "-host localhost -ppn 4", "localhost:4", params.FromFlag, 4},
		{"", "-host localhost:2,[::1]:3", "localhost:5", params.FromFlag, 5},
		{"", "-ppn 4 -host localhost:2,127.0.0.1", "localhost:3", params.FromFlag, 3},
		{"", "-f here", "localhost:3", params.FromFlag, 3},
		{"", "-f here -host 127.0.0.1:1", "localhost:1", params.FromFlag, 1},
		{"", "-config local.toml", "localhost:4", params.FromFile, 4},
		{"", "-config local.toml -launcher local -host a,::1 -launcher ssh", "a localhost:4", params.FromFlag, 0},
		{"", "-host localhost:2,a:3,::1", "localhost:3 a:3", params.FromFlag, 0},
	} {
		j := parse(t, strings.Fields(test.env), append(strings.Fields(test.args), "x")...)
		require.Equal(t, test.want, shownHosts(j.Hosts), test.args)
		require.Equal(t, test.from, j.Source["host"], test.args)
		require.Equal(t, test.slots, j.Slots, test.args)
	}
	require.Equal(t, "flag", parse(t, []string{env}, "-f", "flag", "x").Hostfile)
	require.Equal(t, "dir/beside", parse(t, []string{env}, "-config", "dir/beside.toml", "x").Hostfile)
	require.Empty(t, parse(t, []string{env}, "-config", "host.toml", "x").Hostfile)
}

func TestApplySlots(t *testing.T) {
	for _, test := range []struct{ env, args, want string }{
		{"", "", "a:4 b c:2/3"},
		{"WEFT_JOB_SLOTS=5", "", "a:4 b:5 c:2/3"},
		{"", "-ppn 5", "a:5 b:5 c:3/3"},
		{"", "-ppn 0", "a:4 b c:2/3"},
	} {
		list := []hosts.Host{{Name: "a", Slots: 4}, {Name: "b"}, {Name: "c", Slots: 2, MaxSlots: 3}}
		parse(t, strings.Fields(test.env), append(strings.Fields(test.args), "x")...).ApplySlots(list)
		require.Equal(t, test.want, shownHosts(list), test)
	}
}

func TestHostErrors(t *testing.T) {
	inDir(t,
		"good", "a\nb max_slots=2\n", "bad", "a\n\nb slot=4\n", "empty", "# none\n", "dir/bad", "a:0\n",
		"host.toml", "[[host]]\nname = \"b\"\nmax_slots = 2\n",
		"dir/bad.toml", "\n[launcher]\nhostfile = \"bad\"\n", "dir/no.toml", "launcher.hostfile = \"good\"\n",
	)
	const bad = `bad:3: unknown key "slot"; expected slots, max_slots, user, port or address`
	for _, test := range []struct{ env, args, want string }{
		{"", "-hostfile bad", "-hostfile: " + bad},
		{"", "-machinefile bad", "-machinefile: " + bad},
		{"", "-f empty", "-f: empty:1: the file names no host"},
		{"", "-f no", `-f: expected a hostfile, found "no": no such file or directory`},
		{"", "-f dir", `-f: dir: is a directory`},
		{"WEFT_LAUNCHER_HOSTFILE=bad", "", "WEFT_LAUNCHER_HOSTFILE: " + bad},
		{"", "-config dir/bad.toml", `dir/bad.toml:3:12: launcher.hostfile: dir/bad:1: expected HOST[:SLOTS] with from 1 to 65536 slots, found "a:0"`},
		{"", "-config dir/no.toml", `dir/no.toml:1:21: launcher.hostfile: expected a hostfile, found "dir/good": no such file or directory`},
		{"", "-f good -host c", `-host: expected a host of good, found "c"`},
		{"", "-f good -host b:3", `-host: expected at most 2 slots of b, as good says, found 3`},
		{"", "-config host.toml -host a,b:3", `-host: expected at most 2 slots of b, as host.toml says, found 3`},
		{"", "-launcher local -host localhost,a", `-launcher: expected auto or ssh for other machines than this, such as "a", found local`},
	} {
		j, _, err := Parse(append(strings.Fields(test.args), "x"), strings.Fields(test.env))
		require.EqualError(t, err, test.want)
		require.Nil(t, j)
	}
}

func TestChecks(t *testing.T) {
	inDir(t,
		"file", "", "d/file", "", "rank.toml", "job.rankfile = \"no\"\n", "d/rank.toml", "[job]\nrankfile = \"file\"\nreport = \"d/r\"\n[launcher]\nsecret_file = \"file\"\nlisten = \"a:1\"\n",
		"listen.toml", "[launcher]\nlisten = \":1\"\n", "dial.toml", "[launcher]\nkind = \"dial\"\n", "stage.toml", "[launcher]\nstage_files = [\"file\", \"d\"]\n",
	)
	const listen, secret = "-listen (launcher.listen)", "-secret-file (launcher.secret_file)"
	for _, test := range []struct{ args, want string }{
		{"-rankfile no", `-rankfile: expected a rankfile, found "no": no such file or directory`},
		{"-rankfile d", `-rankfile: expected a rankfile, found "d": is a directory`},
		{"-config rank.toml", `rank.toml:1:16: job.rankfile: expected a rankfile, found "no": no such file or directory`},
		{"-report d", `-report: expected a file, found the directory "d"`},
		{"-report no/r", `-report: expected a file in a directory that exists, found "no/r"`},
		{"-stage-files file,no", `-stage-files: expected files, found "no": no such file or directory`},
		{"-config stage.toml", `stage.toml:2:15: launcher.stage_files: expected files, found "d": is a directory`},
		{"-stage-files /dev/null", `-stage-files: expected files, found "/dev/null": not a regular file`},
		{"-listen :0 -secret-file no", `-secret-file: expected a file with a secret, found "no": no such file or directory`},
		{"-listen :0", "-listen: expected " + secret + " with it, found none"},
		{"-config listen.toml", "listen.toml:2:10: launcher.listen: expected " + secret + " with it, found none"},
		{"-launcher dial", "-launcher: expected " + listen + " with dial, found none"},
		{"-config dial.toml", "dial.toml:2:8: launcher.kind: expected " + listen + " with dial, found none"},
		{"-agents 3", "-agents: expected " + listen + " with it, found none"},
		{"-listen :0 -secret-file file -launcher ssh", "-listen: expected -launcher dial or auto with it, found ssh"},
	} {
		j, _, err := Parse(append(strings.Fields(test.args), "x"), nil)
		require.EqualError(t, err, test.want)
		require.Nil(t, j)
	}
	j := parse(t, nil, "-config", "d/rank.toml", "x")
	require.Equal(t, "d/file", j.Rankfile)
	require.Equal(t, "d/file", j.SecretFile)
	require.Equal(t, "d/r", j.Report)
	abs, err := filepath.Abs("file")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile("abs.toml", []byte("job.rankfile = '"+abs+"'\n"), 0o600))
	require.Equal(t, abs, parse(t, nil, "-config", "abs.toml", "x").Rankfile)
	require.Equal(t, "file", parse(t, nil, "-secret-file", "file", "x").SecretFile)
}
