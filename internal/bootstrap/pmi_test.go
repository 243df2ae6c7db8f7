package bootstrap

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/internal/wire"
	"golang.org/x/sys/unix"
)

// step is a line that the client must send, and the launcher's reply. If want ends with "...", only
// the text before that must match. If the reply is empty, the launcher closes the connection.
type step struct{ want, reply string }

// scriptedLauncher runs a launcher on one end of a socketpair and returns the descriptor of the other
// end, which KVS.Finalize closes. done gets the first deviation from steps, or nil.
func scriptedLauncher(t *testing.T, steps ...step) (fd int, done <-chan error) {
	t.Helper()
	pair, err := sys.Socketpair()
	require.NoError(t, err)
	f := os.NewFile(uintptr(pair[0]), "launcher")
	return pair[1], play(f, steps)
}

func play(f io.ReadWriteCloser, steps []step) <-chan error {
	c := make(chan error, 1)
	go func() { // ends after the steps or when the client closes the connection
		defer f.Close()
		in := bufio.NewReader(f)
		for _, s := range steps {
			line, err := in.ReadString('\n')
			if err != nil {
				c <- fmt.Errorf("instead of %q: %w", s.want, err)
				return
			}
			want, prefix := strings.CutSuffix(s.want, "...")
			if line != s.want+"\n" && (!prefix || !strings.HasPrefix(line, want)) {
				c <- fmt.Errorf("%q instead of %q", line, s.want)
				return
			}
			if s.reply == "" {
				break
			}
			_, _ = io.WriteString(f, s.reply+"\n")
		}
		c <- nil
	}()
	return c
}

func env(kv ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(kv); i += 2 {
			if kv[i] == name {
				return kv[i+1]
			}
		}
		return ""
	}
}

var (
	stepInit = step{"cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"}
	stepName = step{"cmd=get_my_kvsname", "cmd=my_kvsname kvsname=K"}
	stepApp  = step{"cmd=get_appnum", "cmd=appnum appnum=1"}
	stepMap  = step{"cmd=get kvsname=K key=PMI_process_mapping", "cmd=get_result rc=0 msg=success value=(vector,(0,2,1)) found=TRUE"}
	stepIn   = step{"cmd=barrier_in", "cmd=barrier_out"}
	stepEnd  = step{"cmd=finalize", "cmd=finalize_ack"}
)

func TestPMIOpen(t *testing.T) {
	secret := NewSecret()
	fd, done := scriptedLauncher(t, stepInit, stepName, stepApp, stepMap, stepIn,
		step{"cmd=get kvsname=K key=weft-job", "cmd=get_result rc=0 msg=success value=abc:" + hex.EncodeToString(secret[:]) + " found=TRUE"},
		step{"cmd=put kvsname=K key=a value=b=c", "cmd=put_result rc=0 msg=success"},
		stepIn,
		step{"cmd=get kvsname=K key=a", "cmd=get_result rc=0 msg=success value=b=c"},
		step{"cmd=get kvsname=K key=none", "cmd=get_result rc=-1 msg=key_none_not_found value=unknown"},
		stepEnd)
	w, err := open(t.Context(), env("PMI_FD", strconv.Itoa(fd), "PMI_RANK", "1", "PMI_SIZE", "2"), io.Discard)
	require.NoError(t, err)
	require.Equal(t, []any{1, 2, 1, []int{0, 1}, "abc", secret, "pmi"}, []any{w.Rank, w.Size, w.AppNum, w.HostOf, w.JobID, w.Secret, w.Launcher})
	require.NoError(t, w.KVS.Put("a", "b=c"))
	require.NoError(t, w.KVS.Fence(t.Context()))
	v, err := w.KVS.Get("a")
	require.NoError(t, err)
	require.Equal(t, "b=c", v)
	_, err = w.KVS.Get("none")
	require.ErrorIs(t, err, ErrNoKey)
	require.Error(t, w.KVS.Put("a key", "v"))
	require.Error(t, w.KVS.Put("key", strings.Repeat("v", MaxValue+1)))
	require.Error(t, w.KVS.Put(strings.Repeat("k", MaxKey+1), "v"))
	require.NoError(t, w.KVS.Finalize())
	require.NoError(t, <-done)
	require.ErrorIs(t, w.KVS.Finalize(), errClosed)
	require.ErrorIs(t, w.KVS.Abort(Abort{Code: 1, Reason: "late"}), errClosed)
}

func TestPMIOpenRank0WithoutMapping(t *testing.T) {
	none := "cmd=get_result rc=-1 msg=key_not_found"
	host := "cmd=get_result rc=0 msg=success value="
	fd, done := scriptedLauncher(t, stepInit, stepName, stepApp,
		step{"cmd=get kvsname=K key=PMI_process_mapping", none},
		step{"cmd=put kvsname=K key=weft-host-0 value=...", "cmd=put_result rc=0"},
		step{"cmd=put kvsname=K key=weft-job value=...", "cmd=put_result rc=0"},
		stepIn,
		step{"cmd=get kvsname=K key=weft-host-0", host + "a"},
		step{"cmd=get kvsname=K key=weft-host-1", host + "b"},
		step{"cmd=get kvsname=K key=weft-host-2", host + "a"},
		step{"cmd=put kvsname=K key=weft-nodes-0 value=0*1,1*1,0*1,", "cmd=put_result rc=0"},
		stepIn,
		step{"cmd=get kvsname=K key=weft-nodes-0", host + "0*1,1*1,0*1,"},
		stepEnd)
	w, err := open(t.Context(), env("PMI_FD", strconv.Itoa(fd), "PMI_RANK", "0", "PMI_SIZE", "3"), io.Discard)
	require.NoError(t, err)
	require.Equal(t, []int{0, 1, 0}, w.HostOf)
	require.NoError(t, w.KVS.Finalize())
	require.NoError(t, <-done)
}

func TestPMIPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	accepted := make(chan (<-chan error), 1)
	go func() { // ends when the client has connected
		c, err := l.Accept()
		if err == nil {
			accepted <- play(c, []step{
				{"cmd=initack pmiid=0", "cmd=initack\ncmd=set size=1\ncmd=set rank=0\ncmd=set debug=0"},
				stepInit, stepName, stepApp, stepMap,
				{"cmd=put kvsname=K key=weft-job value=...", "cmd=put_result rc=0"}, stepIn, stepEnd,
			})
		}
	}()
	w, err := open(t.Context(), env("PMI_PORT", l.Addr().String(), "PMI_ID", "0"), io.Discard)
	require.NoError(t, err)
	require.Equal(t, 1, w.Size)
	require.NoError(t, w.KVS.Finalize())
	require.NoError(t, <-<-accepted)

	_, err = open(t.Context(), env("PMI_PORT", "127.0.0.1:1", "PMI_ID", "0"), io.Discard)
	require.ErrorIs(t, err, unix.ECONNREFUSED)
	_, err = open(t.Context(), env("PMI_PORT", "127.0.0.1:1"), io.Discard)
	require.ErrorContains(t, err, "PMI_ID")
}

func TestPMIBadLaunchers(t *testing.T) {
	for name, steps := range map[string][]step{
		"hangs up":      {{stepInit.want, ""}},
		"other version": {{stepInit.want, "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0"}},
		"refuses":       {{stepInit.want, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1"}},
		"other answer":  {{stepInit.want, "cmd=barrier_out"}},
		"no PMI":        {{stepInit.want, "HTTP/1.1 400 Bad Request"}},
		"long line":     {{stepInit.want, "cmd=" + strings.Repeat("x", 5000)}},
		"no name":       {stepInit, {stepName.want, "cmd=my_kvsname"}},
		"no secret":     {stepInit, stepName, stepApp, stepMap, stepIn, {"cmd=get kvsname=K key=weft-job", "cmd=get_result rc=0 value=x"}},
	} {
		fd, done := scriptedLauncher(t, steps...)
		_, err := open(t.Context(), env("PMI_FD", strconv.Itoa(fd), "PMI_RANK", "1", "PMI_SIZE", "2"), io.Discard)
		require.Error(t, err, name)
		require.NoError(t, unix.Close(fd))
		require.NoError(t, <-done, name)
	}
	for _, kv := range [][2]string{{"2", "2"}, {"-1", "2"}, {"x", "2"}, {"0", ""}, {"0", "0"}} {
		fd, done := scriptedLauncher(t)
		_, err := open(t.Context(), env("PMI_FD", strconv.Itoa(fd), "PMI_RANK", kv[0], "PMI_SIZE", kv[1]), io.Discard)
		require.Error(t, err, kv)
		_ = unix.Close(fd)
		require.NoError(t, <-done)
	}
}

// TestAccountGoesToGorun checks that World.Finalize reports the wire.Account to gorun, and to no
// other PMI-1 launcher.
func TestAccountGoesToGorun(t *testing.T) {
	for gorun, says := range map[bool]string{
		true:  "cmd=finalize messages_sent=1 messages_received=0 bytes_sent=8 bytes_received=0 waited_ns=0",
		false: "cmd=finalize",
	} {
		fd, done := scriptedLauncher(t, step{says, "cmd=finalize_ack"})
		w := &World{KVS: &pmiClient{conn: &lineConn{fd: fd}, name: "K", gorun: gorun}}
		require.NoError(t, w.Finalize(wire.Account{MessagesSent: 1, BytesSent: 8}))
		require.NoError(t, <-done)
	}
	require.NoError(t, (&World{KVS: &localKVS{}}).Finalize(wire.Account{}))
}

func TestFenceEndsWithItsContext(t *testing.T) {
	pair, err := sys.Socketpair()
	require.NoError(t, err)
	defer unix.Close(pair[0])
	p := &pmiClient{conn: &lineConn{fd: pair[1]}, name: "K"}
	defer p.conn.close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { // ends when the rank has entered the fence
		_, _ = unix.Read(pair[0], make([]byte, 100))
		cancel()
	}()
	require.ErrorIs(t, p.Fence(ctx), context.Canceled)
}

func TestFenceDeadlineLeavesTheChannelBroken(t *testing.T) {
	pair, err := sys.Socketpair()
	require.NoError(t, err)
	defer unix.Close(pair[0])
	p := &pmiClient{conn: &lineConn{fd: pair[1]}, name: "K", gorun: true}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, p.Fence(ctx), context.DeadlineExceeded)
	_, err = p.Get("a")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, p.Abort(Abort{Code: 7, Reason: "no answer"}))
	buf := make([]byte, 200)
	n, err := unix.Read(pair[0], buf)
	require.NoError(t, err)
	require.Equal(t, "cmd=barrier_in refusable=1\ncmd=abort exitcode=7 reason=no+answer\n", string(buf[:n]))
	p.conn.close()
}

func TestAbortReason(t *testing.T) {
	for _, s := range []string{"plain", "two words\nand a line = 1 \\", strings.Repeat("é%", 2000)} {
		esc := EscapeReason(s)
		require.Less(t, len(esc), 1000)
		require.True(t, strings.HasPrefix(s, strings.ToValidUTF8(UnescapeReason(esc), "")))
	}
	require.Equal(t, "%zz", UnescapeReason("%zz"))
}

func TestNativeOpen(t *testing.T) {
	listener, err := sys.Socket(unix.AF_INET, unix.SOCK_STREAM)
	require.NoError(t, err)
	fd, done := scriptedLauncher(t, stepInit, stepEnd)
	card := testCard()
	card.Control = fd
	f, err := card.Seal()
	require.NoError(t, err)
	defer f.Close()
	native := func(kv ...string) (func(string) string, int) {
		cardFD, err := unix.Dup(int(f.Fd())) // Open closes it
		require.NoError(t, err)
		return env(append(kv, EnvRank, "3", EnvJobFD, strconv.Itoa(cardFD), EnvListenFD, strconv.Itoa(listener),
			"PMI_FD", strconv.Itoa(fd), "PMI_RANK", "3", "PMI_SIZE", "4")...), cardFD
	}

	e, cardFD := native() // the listener does not listen yet
	_, err = open(t.Context(), e, io.Discard)
	require.ErrorContains(t, err, EnvListenFD)
	require.NoError(t, unix.Close(cardFD))
	require.NoError(t, unix.Listen(listener, 1))

	for _, rank := range []string{"4", "", "-1"} {
		e, cardFD := native(EnvRank, rank, "PMI_RANK", rank)
		_, err = open(t.Context(), e, io.Discard)
		require.ErrorContains(t, err, EnvRank, rank)
		require.NoError(t, unix.Close(cardFD))
	}

	for _, kv := range [][]string{ // another launcher has run between gorun and this process
		{"PMI_FD", "0"}, {"PMI_FD", ""}, {"PMI_RANK", "0", "PMI_FD", "0"}, {"PMI_SIZE", "2", "PMI_FD", "0"},
		{"PMIX_RANK", "0", "PMI_FD", "0"},
	} {
		e, cardFD := native(kv...)
		_, err := open(t.Context(), e, io.Discard)
		require.ErrorContains(t, err, "found "+EnvRank+"=3", kv)
		require.NoError(t, unix.Close(cardFD))
	}
	e, cardFD = native("OMPI_COMM_WORLD_SIZE", "1", "OMPI_COMM_WORLD_RANK", "0", "PMI_FD", "0")
	w, err := open(t.Context(), e, io.Discard)
	require.NoError(t, err)
	require.Equal(t, alone, w.Launcher)
	require.NoError(t, unix.Close(cardFD))

	e, _ = native()
	w, err = open(t.Context(), e, io.Discard)
	require.NoError(t, err)
	require.Equal(t, []any{3, 4, 1, []int{0, 0, 1, 1}, "job1", "gorun", 20000}, []any{w.Rank, w.Size, w.AppNum, w.HostOf, w.JobID, w.Launcher, w.BasePort})
	require.Equal(t, 4096, w.Params.Int("engine.eager_limit"))
	require.NotNil(t, w.Listener)
	for _, fd := range []int{fd, listener} {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		require.NoError(t, err)
		require.NotZero(t, flags&unix.FD_CLOEXEC)
	}
	require.NoError(t, w.Listener.Close())
	require.NoError(t, w.KVS.Finalize())
	require.NoError(t, <-done)
}

// inherit returns a duplicate of f's descriptor for Open, which closes it, and closes f.
func inherit(t *testing.T, f *os.File) int {
	t.Helper()
	fd, err := unix.Dup(int(f.Fd()))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	return fd
}

// TestHydra checks that ranks that MPICH's mpiexec.hydra starts find each other, by PMI_FD and by
// PMI_PORT.
func TestHydra(t *testing.T) {
	mpiexec, err := exec.LookPath("mpiexec.hydra")
	if err != nil {
		t.Fatal("no mpiexec.hydra: install mpich, as make test does")
	}
	for _, args := range [][]string{{"-n", "4"}, {"-pmi-port", "-n", "3"}} {
		cmd := exec.Command(mpiexec, append(args, os.Args[0])...)
		cmd.Env = append(os.Environ(), helperEnv+"=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		np, _ := strconv.Atoi(args[len(args)-1])
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		sort.Strings(lines)
		require.Len(t, lines, np, string(out))
		_, secret, _ := strings.Cut(lines[0], "secret ")
		for r, line := range lines {
			nodes := fmt.Sprint(make([]int, np))
			require.Equal(t, fmt.Sprintf("rank %d of %d app 0 by pmi nodes %s secret %s", r, np, nodes, secret), line)
		}
	}
}

// TestUnknownVariablesAreReportedOnce checks that rank 0 warns of WEFT_ variables that nothing
// reads, and that the other ranks, and a program that a rank starts, do not.
func TestUnknownVariablesAreReportedOnce(t *testing.T) {
	const warning = "weft: warning: WEFT_TRANSPORT is set, and nothing reads it; did you mean WEFT_TRANSPORT_USE?\n"
	for _, test := range []struct {
		role string
		argv []string
	}{
		{"1", []string{os.Args[0]}}, {"1", []string{"mpiexec.hydra", "-n", "3", os.Args[0]}}, {"child 1", []string{"mpiexec.hydra", "-n", "2", os.Args[0]}},
	} {
		cmd := exec.Command(test.argv[0], test.argv[1:]...)
		cmd.Env = append(os.Environ(), helperEnv+"="+test.role, "WEFT_TRANSPORT=tcp", "WEFT_JOB_TIMEOUT=1h", "WEFT_VERBOSE=")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		require.Equal(t, 1, strings.Count(string(out), "warning"), string(out))
		require.Contains(t, string(out), warning)
	}
}
