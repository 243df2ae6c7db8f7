package launcher

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/internal/wire"
)

// TestPMITranscripts reads "rank> line" as what a rank says and "rank< line"
// as what it gets, in this order; "! text" is the error of the line before.
func TestPMITranscripts(t *testing.T) {
	for name, c := range map[string]struct {
		np     int
		script string
	}{
		"mpich's init": {2, `
			0> cmd=init pmi_version=1 pmi_subversion=1
			0< cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0
			0> cmd=get_maxes
			0< cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024
			0> cmd=get_appnum
			0< cmd=appnum appnum=0
			1> cmd=get_appnum
			1< cmd=appnum appnum=1
			0> cmd=get_my_kvsname
			0< cmd=my_kvsname kvsname=K
			0> cmd=get_universe_size
			0< cmd=universe_size size=2
			0> cmd=get kvsname=K key=PMI_process_mapping
			0< cmd=get_result rc=0 msg=success value=(vector,(0,1,2))
			0> cmd=finalize
			0< cmd=finalize_ack`},
		"other version": {1, `
			0> cmd=init pmi_version=2 pmi_subversion=0
			0< cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1`},
		"put and get": {2, `
			0> cmd=put kvsname=K key=a value=b=c
			0< cmd=put_result rc=0 msg=success
			1> cmd=get kvsname=K key=a
			1< cmd=get_result rc=0 msg=success value=b=c
			1> cmd=get kvsname=K key=z
			1< cmd=get_result rc=-1 msg=key_z_not_found
			1> cmd=get kvsname=other key=a
			1< cmd=get_result rc=-1 msg=kvsname_not_found
			1> cmd=put kvsname=other key=a value=b
			1< cmd=put_result rc=-1 msg=kvsname_not_found
			1> cmd=put kvsname=K key=a
			1< cmd=put_result rc=-1 msg=key_or_value_missing
			1> cmd=put kvsname=K key=` + strings.Repeat("k", 64) + ` value=v
			1< cmd=put_result rc=-1 msg=key_too_long`},
		"barrier": {3, `
			0> cmd=barrier_in
			2> cmd=barrier_in
			1> cmd=barrier_in
			0< cmd=barrier_out
			1< cmd=barrier_out
			2< cmd=barrier_out
			1> cmd=barrier_in
			1> cmd=barrier_in
			! barrier_in twice`},
		"names": {1, `
			0> cmd=lookup_name service=s
			0< cmd=lookup_result rc=-1 msg=service_not_found
			0> cmd=publish_name service=s port=tag#0$p
			0< cmd=publish_result rc=0 msg=success
			0> cmd=publish_name service=s port=q
			0< cmd=publish_result rc=-1 msg=duplicate_service_name
			0> cmd=lookup_name service=s
			0< cmd=lookup_result port=tag#0$p rc=0 msg=success
			0> cmd=unpublish_name service=s
			0< cmd=unpublish_result rc=0 msg=success
			0> cmd=unpublish_name service=s
			0< cmd=unpublish_result rc=-1 msg=service_not_found
			0> cmd=publish_name port=p
			0< cmd=publish_result rc=-1 msg=service_missing`},
		"spawn": {1, `
			0> mcmd=spawn
			0> nprocs=2
			0> execname=./a program
			0> argcnt=1
			0> arg1=cmd=abort exitcode=1
			0> endcmd
			0< cmd=spawn_result rc=-1 msg=spawn_is_not_supported
			0> cmd=spawn
			0< cmd=spawn_result rc=-1 msg=spawn_is_not_supported
			0> cmd=get_universe_size
			0< cmd=universe_size size=1`},
		"abort":       {1, "0> cmd=abort exitcode=3\n! abort with code 3: "},
		"abort 256":   {1, "0> cmd=abort exitcode=256\n! abort with code 1: "},
		"abort why":   {1, "0> cmd=abort exitcode=3 reason=out+of+memory\n! abort with code 3: out of memory"},
		"abort alone": {1, "0> cmd=abort\n! abort with code 1: "},
		"unknown":     {1, "0> cmd=dance\n0< cmd=error_result rc=-1 msg=unknown_command"},
		"no command":  {1, "0> GET / HTTP/1.1\n! pmi: line has no cmd="},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			s := newPMIServer("K", make([]int, c.np), func(rank int, line []byte) {
				got = append(got, fmt.Sprintf("%d< %s", rank, strings.TrimSuffix(string(line), "\n")))
			})
			for r := range s.appnum {
				s.appnum[r] = r
			}
			var err error
			for step := range strings.Lines(strings.TrimSpace(c.script)) {
				step = strings.TrimSpace(step)
				if say, ok := strings.CutPrefix(step[1:], "> "); ok && step[0] != '!' {
					require.NoError(t, err)
					require.Empty(t, got)
					err = s.line(int(step[0]-'0'), []byte(say))
					continue
				}
				if step[0] == '!' {
					require.EqualError(t, err, strings.TrimPrefix(strings.TrimPrefix(step, "!"), " ")+strings.Repeat(" ", boolInt(strings.HasSuffix(step, ":"))))
					err = nil
					continue
				}
				require.NotEmpty(t, got, step)
				require.Equal(t, step, got[0])
				got = got[1:]
			}
			require.NoError(t, err)
			require.Empty(t, got)
		})
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestPMIExits(t *testing.T) {
	s := newPMIServer("K", make([]int, 3), func(int, []byte) {})
	for r := range 2 {
		require.NoError(t, s.line(r, []byte("cmd=init pmi_version=1 pmi_subversion=1")))
	}
	require.NoError(t, s.line(1, []byte("cmd=finalize")))
	early, err := s.exit(1)
	require.False(t, early)
	require.NoError(t, err)
	err = s.line(0, []byte("cmd=barrier_in"))
	var hang *hangError
	require.True(t, errors.As(err, &hang))
	require.Equal(t, 1, hang.rank)
	require.ErrorIs(t, err, errHang)
	early, err = s.exit(0)
	require.True(t, early)
	require.ErrorIs(t, err, errHang)
}

func TestPMIExitsWithoutInit(t *testing.T) {
	s := newPMIServer("K", make([]int, 3), func(int, []byte) {})
	for r := range 2 { // shells, for all that we know
		_, err := s.exit(r)
		require.NoError(t, err)
	}
	err := s.line(2, []byte("cmd=init pmi_version=1 pmi_subversion=1"))
	require.ErrorIs(t, err, errAbsent)

	s = newPMIServer("K", make([]int, 2), func(int, []byte) {})
	require.NoError(t, s.line(1, []byte("cmd=init pmi_version=1 pmi_subversion=1")))
	_, err = s.exit(0)
	var hang *hangError
	require.True(t, errors.As(err, &hang))
	require.Equal(t, hangError{0, errAbsent}, *hang)
}

// FuzzPMIServer says anything to a server; it may refuse, but stays in step:
// at most one reply to each line that is no barrier.
func FuzzPMIServer(f *testing.F) {
	for _, m := range []wire.PMIMessage{
		wire.NewPMI("init", "pmi_version", "1"), wire.NewPMI("put", "kvsname", "K", "key", "a", "value", strings.Repeat("v", 900)),
		wire.NewPMI("get", "key", "a"), wire.NewPMI("barrier_in"), wire.NewPMI("lookup_name", "service", "s"), {Cmd: "spawn", Multi: true},
	} {
		line, err := m.Append(nil)
		require.NoError(f, err)
		f.Add(line)
	}
	f.Add([]byte("mcmd=spawn\nx\nendcmd\ncmd=get key=" + strings.Repeat("k", 1000) + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		replies := 0
		s := newPMIServer("K", make([]int, 1), func(_ int, line []byte) {
			replies++
			_, err := wire.ParsePMI(line)
			require.NoError(t, err)
		})
		for len(data) > 0 {
			line, rest, ok, err := wire.PMILine(data)
			if err != nil || !ok {
				return
			}
			before := replies
			_ = s.line(0, line)
			require.LessOrEqual(t, replies-before, 1)
			data = rest
		}
	})
}

// mpich compiles a program of testdata with MPICH.
func mpich(t *testing.T, name string) string {
	t.Helper()
	cc, err := exec.LookPath("mpicc.mpich")
	if err != nil {
		t.Fatal("no mpicc.mpich: install mpich and libmpich-dev, as make test does")
	}
	exe := filepath.Join(t.TempDir(), name)
	out, err := exec.Command(cc, "-O1", "-o", exe, filepath.Join("testdata", name+".c")).CombinedOutput()
	require.NoError(t, err, string(out))
	return exe
}

func TestMPICHPrograms(t *testing.T) {
	hello := mpich(t, "hello")
	for _, np := range []int{1, 4} {
		j := testJob(np)
		j.Apps[0].Program = hello
		res, out, stderr := runJob(t, j)
		require.Zero(t, res.ExitCode, stderr)
		var want []string
		for r := range np {
			want = append(want, fmt.Sprintf("hello from %d of %d app 0", r, np))
		}
		require.Equal(t, want, sortedLines(out))
	}
	j := testJob(2)
	j.Apps[0].Program = hello
	j.Apps = append(j.Apps, j.Apps[0])
	_, out, stderr := runJob(t, j)
	require.Equal(t, 2, strings.Count(out, "of 4 app 1\n"), out+stderr)

	j = testJob(4, "abort")
	j.Apps[0].Program = hello
	res, _, stderr := runJob(t, j)
	require.Equal(t, 9, res.ExitCode, stderr)
	require.Contains(t, stderr, "gorun: rank 1 called Abort (exit code 9)")

	j = testJob(4)
	j.Apps[0].Program = mpich(t, "ring")
	res, out, stderr = runJob(t, j)
	require.Zero(t, res.ExitCode, stderr)
	require.Equal(t, "token 12\n", out)
}

// TestHydraInsideGorun: a launcher that is a rank passes its own rendezvous on.
func TestHydraInsideGorun(t *testing.T) {
	mpiexec, err := exec.LookPath("mpiexec.hydra")
	if err != nil {
		t.Fatal("no mpiexec.hydra: install mpich, as make test does")
	}
	j := testJob(1, "-n", "2", os.Args[0], "world")
	j.Apps[0].Program = mpiexec
	res, out, stderr := runJob(t, j)
	require.Zero(t, res.ExitCode, stderr)
	require.Equal(t, 2, strings.Count(out, "of 2 app 0 by pmi nodes [0 0]"), out)
}
