//go:build libfabric

package libfabric

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

const shmPeer = "WEFT_LIBFABRIC_TEST_SHM_PEER"

// TestShmPeer closes rank 0 while it has operations with rank 1 in flight, or kills rank 1 before
// rank 0 starts an operation with it. Rank 1 runs in a process of its own, because closing an
// endpoint of shm unmaps memory that other endpoints of the same process still read.
func TestShmPeer(t *testing.T) {
	if os.Getenv(shmPeer) != "" {
		runShmPeer(t)
		return
	}
	t.Run("closed under it", func(t *testing.T) {
		a, key, base, cmd, in := startShmPeer(t)
		for i := range 200 {
			op := &transport.Op{Peer: 1, RemoteKey: key, RemoteAddr: base, Data: make([]byte, 10_000)}
			if i%2 == 0 {
				op.Data = op.Data[:500]
				_, _ = a.ep.Send(op) // any result is right, because rank 1 does not poll
			} else {
				_ = a.ep.(transport.RMAEndpoint).Read(op) // for the same reason any result is right here
			}
		}
		require.NoError(t, a.dom.Close())
		require.NoError(t, in.Close())
		require.NoError(t, cmd.Wait())
	})
	t.Run("killed", func(t *testing.T) {
		a, key, base, cmd, _ := startShmPeer(t)
		require.NoError(t, cmd.Process.Kill())
		require.Error(t, cmd.Wait())
		left, err := filepath.Glob("/dev/shm/" + strconv.Itoa(cmd.Process.Pid) + ":*")
		require.NoError(t, err)
		for _, f := range left {
			require.NoError(t, os.Remove(f))
		}
		op := &transport.Op{Peer: 1, RemoteKey: key, RemoteAddr: base, Data: make([]byte, 10_000)}
		until(t, func() bool {
			err = a.ep.(transport.RMAEndpoint).Read(op)
			return !errors.Is(err, transport.ErrAgain)
		}, a)
		// libfabric 2.x refuses operations with a peer that it has not mapped yet, so the Read itself may
		// fail.
		done := 1
		if err != nil {
			require.ErrorIs(t, err, transport.ErrPeerDown)
			done = 0
		}
		until(t, func() bool { return len(a.seen) == done+1 }, a)
		require.Equal(t, done, kinds(a.seen, transport.OpDone))
		for _, c := range a.seen {
			require.ErrorIs(t, c.Err, transport.ErrPeerDown)
		}
		require.ErrorIs(t, send(t, a, 1, "are you there?", a), transport.ErrPeerDown)
	})
}

// startShmPeer opens rank 0 as a, starts rank 1 in the subprocess cmd, and returns the key and base
// of memory that rank 1 has registered. If the test closes in, the standard input of cmd, rank 1
// ends.
func startShmPeer(t *testing.T) (a *node, key, base uint64, cmd *exec.Cmd, in io.Closer) {
	t.Helper()
	a = newNode(t, "shm", config(0, 2))
	cmd = exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestShmPeer$", "-test.timeout=30s")
	cmd.Env = append(os.Environ(), shmPeer+"=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var theirs string
	_, err = fmt.Fscanln(stdout, &theirs)
	require.NoError(t, err)
	_, err = a.dom.av.Insert([]transport.Address{a.ep.Address(), transport.Address(theirs)})
	require.NoError(t, err)
	_, err = fmt.Fprintln(stdin, a.ep.Address())
	require.NoError(t, err)
	until(t, func() bool { return len(a.msgs) == 1 }, a)
	msg := []byte(a.msgs[0])
	return a, binary.LittleEndian.Uint64(msg), binary.LittleEndian.Uint64(msg[8:]), cmd, stdin
}

// runShmPeer is the program of rank 1. After rank 1 has sent the key and base of its memory, it
// does not call libfabric until its standard input ends: if the test killed rank 1 during such a
// call, a lock in memory that shm shares with rank 0 could stay locked.
func runShmPeer(t *testing.T) {
	b := newNode(t, "shm", config(1, 2))
	fmt.Println(b.ep.Address())
	in := bufio.NewReader(os.Stdin)
	theirs, err := in.ReadString('\n')
	require.NoError(t, err)
	_, err = b.dom.av.Insert([]transport.Address{transport.Address(theirs[:len(theirs)-1]), b.ep.Address()})
	require.NoError(t, err)
	mr, err := b.dom.RegisterMemory(make([]byte, 10_000), transport.RemoteRead)
	require.NoError(t, err)
	msg := binary.LittleEndian.AppendUint64(nil, mr.Key())
	require.NoError(t, send(t, b, 0, string(binary.LittleEndian.AppendUint64(msg, mr.Base())), b))
	_, err = io.ReadAll(in)
	require.NoError(t, err)
	for range 1000 {
		b.poll(t)
	}
}
