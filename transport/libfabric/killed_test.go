//go:build libfabric

package libfabric

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/libfabrictest"
)

const (
	peerProvider = "WEFT_LIBFABRIC_TEST_PEER" // the provider of the rank that a subprocess is
	testScript   = "FI_TESTPROV_SCRIPT"
)

// startPeer opens rank 0 as a over this provider, and starts rank 1 in a subprocess, which reads
// its queue until its standard input ends.
func startPeer(t *testing.T, prov string) (a *node, process *os.Process) {
	t.Helper()
	a = newNode(t, prov, config(0, 2))
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilled$", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), peerProvider+"="+prov)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Process.Kill() // fails if the test has killed it
		_ = cmd.Wait()         // returns the signal
	})
	var theirs string
	_, err = fmt.Fscanln(stdout, &theirs)
	require.NoError(t, err)
	_, err = a.dom.av.Insert([]transport.Address{a.ep.Address(), transport.Address(theirs)})
	require.NoError(t, err)
	_, err = fmt.Fprintln(stdin, a.ep.Address())
	require.NoError(t, err)
	return a, cmd.Process
}

// runPeer is the program of rank 1.
func runPeer(t *testing.T, prov string) {
	b := newNode(t, prov, config(1, 2))
	fmt.Println(b.ep.Address())
	in := bufio.NewReader(os.Stdin)
	theirs, err := in.ReadString('\n')
	require.NoError(t, err)
	_, err = b.dom.av.Insert([]transport.Address{transport.Address(theirs[:len(theirs)-1]), b.ep.Address()})
	require.NoError(t, err)
	go func() { // ends the process
		_, _ = io.ReadAll(in)
		os.Exit(0)
	}()
	for answered := 0; ; {
		b.poll(t)
		for ; answered < len(b.msgs); answered++ {
			require.NoError(t, send(t, b, 0, "answer", b))
		}
	}
}

// TestKilled kills rank 1. Rank 0 must learn that in bounded time from the provider: by an
// operation that is in flight, or by one that it starts.
func TestKilled(t *testing.T) {
	if prov := os.Getenv(peerProvider); prov != "" {
		runPeer(t, prov)
		return
	}
	for _, prov := range []string{"tcp;ofi_rxm", libfabrictest.XNet(), "sockets", "plain", "verbs", "efa", "cxi", "psm"} {
		for name, before := range map[string]func(t *testing.T, a *node, p *os.Process){
			"not contacted": func(*testing.T, *node, *os.Process) {},
			"idle": func(t *testing.T, a *node, p *os.Process) {
				require.NoError(t, send(t, a, 1, "hello", a))
				until(t, func() bool { return len(a.msgs) == 1 }, a)
				for range 100 {
					a.poll(t)
				}
			},
			"stopped under sends": func(t *testing.T, a *node, p *os.Process) {
				require.NoError(t, send(t, a, 1, "hello", a))
				until(t, func() bool { return len(a.msgs) == 1 }, a)
				require.NoError(t, p.Signal(syscall.SIGSTOP))
				for range 1000 {
					_, err := a.ep.Send(&transport.Op{Peer: 1, Data: make([]byte, min(30_000, a.dom.attr.MaxMsgSize))})
					if err != nil {
						require.ErrorIs(t, err, transport.ErrAgain)
						break
					}
				}
				a.poll(t)
			},
		} {
			t.Run(prov+"/"+name, func(t *testing.T) {
				over := prov
				if !slices.Contains(providers(), prov) {
					t.Setenv(testScript, prov)
					over = libfabrictest.Name
				}
				a, p := startPeer(t, over)
				before(t, a, p)
				require.NoError(t, p.Kill())
				until(t, func() bool {
					_, err := a.ep.Send(&transport.Op{Peer: 1, Data: []byte("are you there?")})
					if err != nil && !errors.Is(err, transport.ErrAgain) {
						require.ErrorIs(t, err, transport.ErrPeerDown)
					}
					return kinds(a.seen, transport.PeerDown) == 1
				}, a)
				until(t, func() bool { return a.dom.arena.busy == 0 }, a)
				_, err := a.ep.Send(&transport.Op{Peer: 1})
				require.ErrorIs(t, err, transport.ErrPeerDown)
				require.ErrorContains(t, err, "libfabric "+over+" on "+a.dom.attr.Name+": ")
			})
		}
	}
}
