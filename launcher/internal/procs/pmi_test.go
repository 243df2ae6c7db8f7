//go:build linux

package procs

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// TestPMITranscripts runs scripts. In a script "N> line" is a line that rank N sends, "N< line" is
// the next line that the server must send to rank N, and "! text" is the error that the server must
// return for the line before.
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
		"spawn": {1, `
			0> mcmd=spawn
			0> nprocs=2
			0> execname=./a program
			0> argcnt=1
			0> arg1=cmd=abort exitcode=1
			0> totspawns=1
			0> spawnssofar=1
			0> endcmd
			0< cmd=spawn_result rc=0 msg=2*./a_program,cmd=abort_exitcode=1
			0> cmd=spawn
			0< cmd=spawn_result rc=-1 msg=spawn_failed reason=the+request+is+not+a+block+of+lines+that+begins+with+mcmd%3Dspawn
			0> cmd=get_universe_size
			0< cmd=universe_size size=1`},
		"malformed spawn": {2, `
			0> mcmd=spawn
			0> nprocs=2
			1> mcmd=spawn
			1> nprocs=x
			0> endcmd
			0< cmd=spawn_result rc=-1 msg=spawn_failed reason=pmi+spawn%3A+no+totspawns
			0> cmd=get_universe_size
			0< cmd=universe_size size=2
			1> execname=a
			1> totspawns=1
			1> spawnssofar=1
			1> endcmd
			1< cmd=spawn_result rc=-1 msg=spawn_failed reason=pmi+spawn%3A+nprocs%3Dx`},
		"hasty spawn": {1, `
			0> cmd=lookup_name service=wait
			0> mcmd=spawn
			0> nprocs=1
			0> execname=a
			0> totspawns=1
			0> spawnssofar=1
			0> endcmd
			! spawn without waiting for the reply to a request before it`},
		"abort":       {1, "0> cmd=abort exitcode=3\n! abort with code 3: "},
		"abort 256":   {1, "0> cmd=abort exitcode=256\n! abort with code 1: "},
		"abort why":   {1, "0> cmd=abort exitcode=3 reason=out+of+memory\n! abort with code 3: out of memory"},
		"abort alone": {1, "0> cmd=abort\n! abort with code 1: "},
		"unknown":     {1, "0> cmd=dance\n0< cmd=error_result rc=-1 msg=unknown_command"},
		"no command":  {1, "0> GET / HTTP/1.1\n! pmi: line has no cmd="},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			s := testPMI(c.np, func(rank int, line []byte) {
				got = append(got, fmt.Sprintf("%d< %s", rank, strings.TrimSuffix(string(line), "\n")))
			})
			for r := range s.appnum {
				s.appnum[r] = r
			}
			s.request = func(int, []byte) {} // gorun does not answer
			s.spawn = func(rank int, r *wire.Spawn) {
				c := r.Commands[0]
				text := fmt.Sprintf("%d*%s,%s", c.Procs, c.Exec, strings.Join(c.Args, ","))
				s.answered(rank, []byte("cmd=spawn_result rc=0 msg="+strings.ReplaceAll(text, " ", "_")+"\n"))
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

func TestPMIStates(t *testing.T) {
	s := testPMI(3, func(int, []byte) {})
	global := func(i int) int { return 10 + i }
	require.Equal(t, proto.State{Left: -1, Absent: -1}, s.state(global))
	for r := range 2 {
		require.NoError(t, s.line(r, []byte("cmd=init pmi_version=1 pmi_subversion=1")))
	}
	require.NoError(t, s.line(1, []byte("cmd=finalize")))
	early, joined := s.exit(1)
	require.False(t, early)
	require.True(t, joined)
	require.Equal(t, proto.State{Begun: true, Left: 11, Absent: -1}, s.state(global))
	require.NoError(t, s.line(0, []byte("cmd=barrier_in")))
	require.Equal(t, proto.State{Begun: true, Waiting: 1, Left: 11, Absent: -1}, s.state(global))
	early, joined = s.exit(0)
	require.True(t, early)
	require.True(t, joined)
	early, joined = s.exit(2)
	require.False(t, early)
	require.False(t, joined)
	require.Equal(t, proto.State{Waiting: 1, Left: 11, Absent: 12}, s.state(global))
}

// TestPMIRefused checks that a rank that expects it gets an error from the barrier in which it waits when the
// job ends, and from later ones, and that others get none.
func TestPMIRefused(t *testing.T) {
	var got []string
	s := testPMI(3, func(rank int, line []byte) { got = append(got, fmt.Sprintf("%d %s", rank, line)) })
	var fences int
	s.fence = func(proto.Fence) { fences++ }
	const in = "cmd=barrier_in refusable=1"
	require.NoError(t, s.line(0, []byte(in)))
	require.NoError(t, s.line(1, []byte("cmd=barrier_in")))
	for rank := range 3 {
		s.refuse(rank)
	}
	const refused = "cmd=barrier_out rc=-1 msg=the_job_ends\n"
	require.Equal(t, []string{"0 " + refused}, got)
	require.NoError(t, s.line(2, []byte(in)))
	require.NoError(t, s.line(0, []byte(in)))
	require.Equal(t, []string{"0 " + refused, "2 " + refused, "0 " + refused}, got)
	require.Zero(t, fences)
	require.EqualError(t, s.line(1, []byte(in)), "barrier_in twice")
}

// TestPMIAccounts checks what pmiServer.account returns for a rank after different lines from it.
// An account, which a rank reports in finalize, is what it has sent and received and how long it
// has waited.
func TestPMIAccounts(t *testing.T) {
	const (
		hello  = "cmd=init pmi_version=1 pmi_subversion=1"
		bye    = "cmd=finalize"
		report = "cmd=finalize messages_sent=1 messages_received=2 bytes_sent=30 bytes_received=40 waited_ns=500"
		most   = "cmd=finalize messages_sent=1 messages_received=2 bytes_sent=9223372036854775807 bytes_received=40 waited_ns=500"
	)
	one := &wire.Account{MessagesSent: 1, MessagesReceived: 2, BytesSent: 30, BytesReceived: 40, Waited: 500}
	for name, c := range map[string]struct {
		says  []string
		lived time.Duration
		want  *wire.Account
	}{
		"reports":                     {[]string{hello, report}, 500, one},
		"no weft program":             {[]string{hello, bye}, 500, nil},
		"no Finalize":                 {[]string{hello}, 500, nil},
		"no Init":                     {[]string{report}, 500, nil},
		"waits longer than it lives":  {[]string{hello, report}, 499, nil},
		"nonsense":                    {[]string{hello, strings.Replace(report, "=30", "=-30", 1)}, 500, nil},
		"two programs":                {[]string{hello, report, hello, report}, 1000, &wire.Account{MessagesSent: 2, MessagesReceived: 4, BytesSent: 60, BytesReceived: 80, Waited: 1000}},
		"the second is no weft one":   {[]string{hello, report, hello, bye}, 500, one},
		"the second ends early":       {[]string{hello, report, hello}, 500, nil},
		"finalizes twice":             {[]string{hello, report, report}, 1000, one},
		"the sum is out of all range": {[]string{hello, report, hello, most}, 1000, one},
	} {
		var got []string
		s := testPMI(1, func(_ int, line []byte) { got = append(got, string(line)) })
		for _, line := range c.says {
			require.NoError(t, s.line(0, []byte(line)), name)
		}
		require.Len(t, got, len(c.says), name)
		require.Equal(t, c.want, s.account(0, c.lived), name)
	}
}

// TestPMIFences checks that a host reports a fence once, when all of its ranks are in it, together
// with what they have put; and that with countExited set, ended ranks count as being in it.
func TestPMIFences(t *testing.T) {
	var fences []proto.Fence
	var out []int
	s := newPMIServer("K", 4, "", []int{0, 0})
	s.reply = func(r int, line []byte) {
		if strings.HasPrefix(string(line), "cmd=barrier_out") {
			out = append(out, r)
		}
	}
	s.fence = func(f proto.Fence) { fences = append(fences, f) }
	require.NoError(t, s.line(0, []byte("cmd=put kvsname=K key=a value=1")))
	require.NoError(t, s.line(0, []byte("cmd=barrier_in")))
	require.Empty(t, fences)
	require.NoError(t, s.line(1, []byte("cmd=barrier_in")))
	require.Equal(t, []proto.Fence{{N: 1, Puts: map[string]string{"a": "1"}, Waiting: true}}, fences)
	require.Empty(t, out)
	s.release(proto.Release{N: 1, Puts: map[string]string{"a": "1", "b": "2"}, Waiting: true})
	require.Equal(t, []int{0, 1}, out)
	require.Equal(t, "2", s.kvs["b"])

	fences, out, s.countExited = nil, nil, true
	require.NoError(t, s.line(0, []byte("cmd=barrier_in")))
	s.exit(1)
	require.Equal(t, []proto.Fence{{N: 2, Puts: map[string]string{}, Waiting: true}}, fences)
	s.release(proto.Release{N: 2, Waiting: true})
	require.Equal(t, []int{0}, out)
	s.exit(0)
	require.Len(t, fences, 2, "ranks of other hosts may still enter fences")
	require.False(t, fences[1].Waiting)
	s.release(proto.Release{N: 3, Waiting: true})
	require.Len(t, fences, 3)
	s.release(proto.Release{N: 4})
	require.Len(t, fences, 3, "no rank will enter another fence")
}

// testPMI returns the server of a job on one host. Each fence ends as soon as all ranks are in it,
// and each request gets a reply at once.
func testPMI(np int, reply func(rank int, line []byte)) *pmiServer {
	s := newPMIServer("K", np, processMapping([]bootstrap.Run{{Count: np}}), make([]int, np))
	s.reply = reply
	s.fence = func(f proto.Fence) { s.release(proto.Release(f)) }
	s.request = func(rank int, _ []byte) { s.answered(rank, []byte("cmd=asked\n")) }
	s.spawn = func(rank int, _ *wire.Spawn) { s.answered(rank, []byte("cmd=spawn_result rc=0\n")) }
	return s
}

// FuzzPMIServer sends arbitrary lines to a server. It checks that the server sends at most one reply
// for each line.
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
		s := testPMI(1, func(_ int, line []byte) {
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
