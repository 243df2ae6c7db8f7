package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/internal/wire"
)

// stepEnv returns the environment of a task of a Slurm step whose ranks use the directory dir.
// Variables in more take precedence.
func stepEnv(dir string, rank, size int, more ...string) []string {
	return append(more, "WEFT_BOOTSTRAP_DIR", dir, "SLURM_JOB_ID", "7", "SLURM_STEP_ID", "0", "SLURM_STEP_NUM_NODES", "1",
		"SLURM_STEP_NUM_TASKS", strconv.Itoa(size), "SLURM_PROCID", strconv.Itoa(rank))
}

// notices returns the names of the files in a directory.
func notices(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	names := []string{}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// noticeOf returns the path of the notice of stepEnv's job.
func noticeOf(t *testing.T, dir string) string {
	t.Helper()
	p, err := fromSlurm(env(stepEnv(dir, 0, 2)...))
	require.NoError(t, err)
	return filepath.Join(dir, p.job)
}

// openAll opens ranks as goroutines and returns their worlds and errors.
func openAll(ctx context.Context, envs ...[]string) ([]*World, []error) {
	worlds, errs := make([]*World, len(envs)), make([]error, len(envs))
	var all sync.WaitGroup
	for i := range envs {
		all.Go(func() { worlds[i], errs[i] = open(ctx, env(envs[i]...), io.Discard) }) // ends when open returns, which has a time limit
	}
	all.Wait()
	return worlds, errs
}

// inAll runs f for all worlds at the same time, and joins the errors.
func inAll(worlds []*World, f func(w *World) error) error {
	errs := make([]error, len(worlds))
	var all sync.WaitGroup
	for i, w := range worlds {
		all.Go(func() { errs[i] = f(w) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func TestRendezvous(t *testing.T) {
	for _, size := range []int{1, 2, 3, 5, 7, 64} {
		for _, nodes := range []string{"1", "2"} { // "1": rank 0 listens on loopback; "2": on all addresses
			t.Run(fmt.Sprint(size, " on ", nodes), func(t *testing.T) {
				dir := t.TempDir()
				envs := make([][]string, size)
				for r := range envs {
					envs[size-1-r] = stepEnv(dir, r, size, "SLURM_STEP_NUM_NODES", nodes) // rank 0 starts last
				}
				worlds, errs := openAll(t.Context(), envs...)
				require.NoError(t, errors.Join(errs...))
				require.Empty(t, notices(t, dir))
				require.NoError(t, inAll(worlds, func(w *World) error { return putFenceGet(t.Context(), w) }))
				for i, w := range worlds {
					require.Equal(t, []any{size - 1 - i, size, make([]int, size)}, []any{w.Rank, w.Size, w.HostOf})
					require.Equal(t, []any{worlds[0].JobID, worlds[0].Secret}, []any{w.JobID, w.Secret})
					require.Len(t, w.JobID, 16)
				}
				require.NoError(t, inAll(worlds, func(w *World) error { return w.KVS.Finalize() }))
				if size > 1 {
					require.Equal(t, "slurm", worlds[0].Launcher)
					kvs := worlds[0].KVS
					require.ErrorIs(t, kvs.Finalize(), errClosed)
					require.ErrorIs(t, kvs.Put("a", "b"), errClosed)
					require.ErrorIs(t, kvs.Fence(t.Context()), errClosed)
					require.ErrorIs(t, kvs.Abort(Abort{Code: 1}), errClosed)
				}
			})
		}
	}
}

// putFenceGet runs two fences. Before the first, every rank puts a pair; after the second it gets
// all pairs.
func putFenceGet(ctx context.Context, w *World) error {
	key := func(r int) string { return "k" + strconv.Itoa(r) }
	if err := w.KVS.Put(key(w.Rank), "v="+strconv.Itoa(w.Rank)); err != nil {
		return err
	}
	if err := errors.Join(w.KVS.Fence(ctx), w.KVS.Fence(ctx)); err != nil {
		return err
	}
	for r := range w.Size {
		if v, err := w.KVS.Get(key(r)); err != nil || v != "v="+strconv.Itoa(r) {
			return fmt.Errorf("rank %d said %q: %w", r, v, err)
		}
	}
	if _, err := w.KVS.Get("none"); !errors.Is(err, ErrNoKey) {
		return fmt.Errorf("no key: %w", err)
	}
	return nil
}

func TestPutsAreBounded(t *testing.T) {
	m := &hubKVS{}
	var err error
	n := 0
	for ; err == nil; n++ {
		err = m.Put("k"+strconv.Itoa(n), "v")
	}
	require.ErrorContains(t, err, "before a fence")
	require.LessOrEqual(t, len(m.pending), maxPuts)
	require.Greater(t, n, 1000)
	require.Error(t, m.Put("a b", ""))
}

// TestStaleNotice checks that a rank removes a notice if nobody listens on its address, and that an
// existing notice does not prevent rank 0 from writing its own.
func TestStaleNotice(t *testing.T) {
	dir := t.TempDir()
	path := noticeOf(t, dir)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	n := testNotice()
	n.Job, n.Host, n.Addrs, n.Port = filepath.Base(path), hostKey(), []string{"127.0.0.1"}, l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close())
	_, err = n.write(path)
	require.NoError(t, err)
	var w *World
	done := make(chan error, 1)
	go func() { // ends when open returns, which has a time limit
		var err error
		w, err = open(t.Context(), env(stepEnv(dir, 1, 2)...), io.Discard)
		done <- err
	}()
	require.Eventually(t, func() bool { return len(notices(t, dir)) == 0 }, 30*time.Second, time.Millisecond)
	_, err = n.write(path)
	require.NoError(t, err)
	worlds, errs := openAll(t.Context(), stepEnv(dir, 0, 2))
	require.NoError(t, errors.Join(errs[0], <-done))
	require.NoError(t, inAll(append(worlds, w), func(w *World) error { return w.KVS.Finalize() }))
	require.Empty(t, notices(t, dir))
}

// TestImpostorOfRank0 checks that connect does not accept a process that does not know the secret as
// rank 0.
func TestImpostorOfRank0(t *testing.T) {
	dir := t.TempDir()
	path := noticeOf(t, dir)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	other := NewSecret()
	h := &hub{session: (&rendezvous{place: &place{job: filepath.Base(path), size: 2}}).session(other[:])}
	ended := make(chan struct{})
	go func() { // ends when the listener is closed
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			var b [wire.TCPHelloSize + wire.TCPProofSize]byte
			var challenge [wire.TCPChallengeSize]byte
			wire.PutTCPChallenge(challenge[:], &wire.TCPNonce{})
			_, _ = c.Write(challenge[:])
			_, _ = io.ReadFull(c, b[:])
			var verdict [wire.TCPVerdictSize]byte
			mac := h.session.Answer(wire.TCPWelcome)
			wire.PutTCPVerdict(verdict[:], wire.TCPWelcome, &mac)
			_, _ = c.Write(verdict[:])
			_ = c.Close()
		}
	}()
	n := testNotice()
	n.Job, n.Host, n.Addrs, n.Port = filepath.Base(path), hostKey(), []string{"127.0.0.1"}, l.Addr().(*net.TCPAddr).Port
	text, err := n.write(path)
	require.NoError(t, err)
	r := &rendezvous{place: &place{job: n.Job, size: 2, rank: 1}, path: path, timeout: time.Minute}
	_, gone, err := r.connect(t.Context(), n)
	require.ErrorIs(t, err, errNotAuthenticated)
	require.True(t, gone)
	require.NoError(t, removeNotice(path, append(text, ' '))) // the content differs, so the notice stays
	require.NotEmpty(t, notices(t, dir))
	require.NoError(t, removeNotice(path, text))
	require.Empty(t, notices(t, dir))
	_ = l.Close()
	<-ended
}

// occupyConnections opens maxUnproved connections to rank 0 that send nothing. When rank 0 closes
// one of them, occupyConnections opens another, until the test ends or rank 0 no longer listens.
func occupyConnections(t *testing.T, addr string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	t.Cleanup(func() {
		stop()
		all.Wait()
	})
	var here sync.WaitGroup
	here.Add(maxUnproved)
	for range maxUnproved {
		all.Go(func() {
			arrived := sync.OnceFunc(here.Done)
			defer arrived()
			for ctx.Err() == nil {
				c, err := net.Dial("tcp", addr)
				if err != nil {
					return // rank 0 no longer listens
				}
				arrived()
				end := context.AfterFunc(ctx, func() { _ = c.Close() })
				_, _ = io.Copy(io.Discard, c)
				end()
				_ = c.Close()
			}
		})
	}
	here.Wait()
}

// TestUnauthenticatedConnectionsToRank0 checks that rank 0 refuses a process that does not know the
// secret, and that such processes do not keep ranks from connecting.
func TestUnauthenticatedConnectionsToRank0(t *testing.T) {
	dir := t.TempDir()
	path := noticeOf(t, dir)
	var w *World
	done := make(chan error, 1)
	go func() { // ends when open returns, which has a time limit
		var err error
		w, err = open(t.Context(), env(stepEnv(dir, 0, 2)...), io.Discard)
		done <- err
	}()
	var n *notice
	require.Eventually(t, func() bool {
		var err error
		n, _, err = readNotice(path)
		return err == nil
	}, 30*time.Second, time.Millisecond)
	to := net.JoinHostPort(n.Addrs[0], strconv.Itoa(n.Port))
	r := &rendezvous{place: &place{job: n.Job, size: 2, rank: 1}, path: path, timeout: time.Minute}
	for _, change := range []func(s *wire.TCPSession){
		func(s *wire.TCPSession) { s.Secret[0]++ },
		func(s *wire.TCPSession) { s.Size++ },
		func(s *wire.TCPSession) { s.From = 0 },
		func(s *wire.TCPSession) { s.From = 2 },
		func(s *wire.TCPSession) { s.JobID += "x" },
	} {
		c, err := net.Dial("tcp", to)
		require.NoError(t, err)
		s := r.session(n.Secret)
		change(&s)
		_, err = handshake(c, s)
		require.Error(t, err)
		require.NoError(t, c.Close())
	}
	occupyConnections(t, to)
	worlds, errs := openAll(t.Context(), stepEnv(dir, 1, 2))
	require.NoError(t, errors.Join(errs[0], <-done))
	require.NoError(t, inAll(append(worlds, w), func(w *World) error { return w.KVS.Finalize() }))
}

// TestRanksThatDoNotCome checks that, if some ranks do not start, the others return an error that
// says which ranks they have waited for, where and how long.
func TestRanksThatDoNotCome(t *testing.T) {
	dir := t.TempDir()
	short := []string{"WEFT_BOOTSTRAP_TIMEOUT", "300ms", "SLURM_STEP_NUM_NODES", "2", "SLURM_STEP_NODELIST", "n[1-2]"}
	_, errs := openAll(t.Context(), stepEnv(dir, 0, 5, short...))
	require.ErrorContains(t, errs[0], "rank 0 of 5 of step 7.0: ranks 1-4 have not connected to rank 0, on "+hostname()+", within 300ms (bootstrap.timeout)")
	require.ErrorContains(t, errs[0], noticeOf(t, dir)+"; if the hosts (n[1-2]) do not share that directory, set WEFT_BOOTSTRAP_DIR")
	require.Empty(t, notices(t, dir))

	_, errs = openAll(t.Context(), stepEnv(dir, 3, 5, short...))
	require.ErrorContains(t, errs[0], "rank 3 of 5 of step 7.0: rank 0 was not found within 300ms (bootstrap.timeout): ")
	require.ErrorContains(t, errs[0], noticeOf(t, dir)+", which rank 0 writes, does not exist on "+hostname()+"; if the hosts (n[1-2])")

	_, errs = openAll(t.Context(), stepEnv(dir, 0, 4, short...), stepEnv(dir, 1, 4, short...), stepEnv(dir, 3, 4, short...))
	for _, err := range errs {
		require.ErrorContains(t, err, "rank 2 has not connected")
	}
	require.Empty(t, notices(t, dir))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, errs = openAll(ctx, stepEnv(dir, 0, 4), stepEnv(dir, 1, 4))
	for _, err := range errs {
		require.ErrorIs(t, err, context.Canceled)
	}
	require.Empty(t, notices(t, dir))
}

func TestHaveRanks(t *testing.T) {
	require.Equal(t, "rank 3 has", haveRanks([]int{3}))
	require.Equal(t, "ranks 0, 2-4, 9 have", haveRanks([]int{0, 2, 3, 4, 9}))
	var odd []int
	for i := range 100 {
		odd = append(odd, 2*i+1)
	}
	require.Equal(t, "ranks 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, and 90 more have", haveRanks(odd))
}

// TestFenceTimesOut checks that, if a rank does not enter a fence, all other ranks get an error that
// names the rank.
func TestFenceTimesOut(t *testing.T) {
	for absent := range 3 {
		t.Run(strconv.Itoa(absent), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			short := []string{"WEFT_BOOTSTRAP_TIMEOUT", "2s"}
			worlds, errs := openAll(t.Context(), stepEnv(dir, 0, 3, short...), stepEnv(dir, 1, 3, short...), stepEnv(dir, 2, 3, short...))
			require.NoError(t, errors.Join(errs...))
			require.NoError(t, inAll(worlds, func(w *World) error {
				if w.Rank == absent {
					return nil
				}
				want := fmt.Sprintf("rank %d has not entered fence 2 within 2s", absent)
				for range 2 {
					if err := w.KVS.Fence(t.Context()); err == nil || !contains(err, want) {
						return fmt.Errorf("rank %d: %w, not %q", w.Rank, err, want)
					}
				}
				return nil
			}))
			require.NoError(t, inAll(worlds, func(w *World) error { return w.KVS.Finalize() }))
		})
	}
}

// TestTwoWithOneNumber checks that the job does not start if two processes have the same rank.
func TestTwoWithOneNumber(t *testing.T) {
	dir := t.TempDir()
	short := []string{"WEFT_BOOTSTRAP_TIMEOUT", "1s"}
	_, errs := openAll(t.Context(), stepEnv(dir, 1, 3, short...), stepEnv(dir, 0, 3, short...), stepEnv(dir, 1, 3, short...))
	require.ErrorContains(t, errs[1], "rank 2 has not connected")
	err := errors.Join(errs[0], errs[2])
	require.ErrorContains(t, err, "rank 2 has not connected")
	require.Empty(t, notices(t, dir))

	_, errs = openAll(t.Context(), stepEnv(dir, 0, 2, short...), stepEnv(dir, 0, 2, short...))
	require.ErrorContains(t, errors.Join(errs...), "two processes are rank 0")
	require.Empty(t, notices(t, dir))
}
