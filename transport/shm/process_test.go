//go:build linux && !portable

package shm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

const childVariable = "WEFT_SHM_TEST_CHILD"

// process is a child process that runs one rank.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// start starts a child process that runs a rank. what names what the rank does; see child. The
// child inherits the file memory. If memory is nil, the rank finds the others by addresses.
func start(t testing.TB, what string, rank, size int, memory *os.File) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %d %t", childVariable, what, rank, size, memory != nil))
	p.cmd.Stderr = os.Stderr
	if memory != nil {
		p.cmd.ExtraFiles = []*os.File{memory}
	}
	var err error
	p.in, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.out = bufio.NewReader(out)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	})
	return p
}

// job opens rank 0 in this process and starts the other ranks in child processes. what names what
// these ranks do (see child). If inherit is set, all ranks get one memory file; otherwise they find
// each other by addresses. The returned processes are indexed by rank; that of rank 0 is nil.
func job(t testing.TB, what string, size int, inherit bool) (*node, []*process) {
	t.Helper()
	cfg := config(0, size)
	if inherit {
		memory, err := newMemory()
		require.NoError(t, err)
		defer memory.Close()
		cfg.Memory, cfg.Locals = memory, ranks(size)
	}
	n, err := newNode(New(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	procs := make([]*process, size)
	addrs := []string{string(n.ep.Address())}
	for i := 1; i < size; i++ {
		procs[i] = start(t, what, i, size, cfg.Memory)
	}
	if inherit {
		return n, procs
	}
	for _, p := range procs[1:] {
		a, err := p.out.ReadString('\n')
		require.NoError(t, err)
		addrs = append(addrs, strings.TrimSpace(a))
	}
	for _, p := range procs[1:] {
		_, err := fmt.Fprintln(p.in, strings.Join(addrs, " "))
		require.NoError(t, err)
	}
	require.NoError(t, insert(n, addrs))
	return n, procs
}

func insert(n *node, addrs []string) error {
	l := make([]transport.Address, len(addrs))
	for i, a := range addrs {
		l[i] = transport.Address(a)
	}
	_, err := n.av.Insert(l)
	return err
}

// child runs a rank in a process that start has started. spec is the value of childVariable.
func child(spec string) error {
	var what string
	var rank, size int
	var inherit bool
	if _, err := fmt.Sscan(spec, &what, &rank, &size, &inherit); err != nil {
		return err
	}
	cfg := config(rank, size)
	if inherit {
		cfg.Memory, cfg.Locals = os.NewFile(3, "memory"), ranks(size)
	}
	n, err := newNode(New(), cfg)
	if err != nil {
		return err
	}
	if !inherit {
		fmt.Println(n.ep.Address())
		line, err := bufio.NewReader(os.Stdin).ReadString('\n')
		if err != nil {
			return err
		}
		if err := insert(n, strings.Fields(line)); err != nil {
			return err
		}
	}
	switch what {
	case "echo":
		err = n.echo()
	case "spin":
		err = n.spinEcho()
	case "sink":
		err = n.sink()
	case "chatter":
		err = newChatter(n).run(func(c *chatter) bool { return c.down > 0 || c.left > 0 })
	default:
		err = errors.New("unknown behaviour " + what)
	}
	if err != nil {
		return fmt.Errorf("rank %d: %w", rank, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	return errors.Join(n.ep.Shutdown(ctx), n.Close())
}

// echo sends back every message until rank 0 has ended.
func (n *node) echo() error {
	for {
		k, err := n.cq.Read(n.comp)
		if err != nil {
			return err
		}
		for _, c := range n.comp[:k] {
			switch {
			case c.Kind == transport.RecvDone:
				op := &transport.Op{Peer: c.Peer, Data: c.Msg}
				for {
					// c.Msg lies in the ring to this rank, and Send copies it to another ring.
					done, err := n.ep.Send(op)
					if done {
						break
					}
					if !errors.Is(err, transport.ErrAgain) {
						return err
					}
					runtime.Gosched()
				}
			case c.Peer == 0:
				return nil
			}
		}
		if k == 0 && n.cq.Arm() {
			if err := n.cq.Wait(-1); err != nil {
				return err
			}
		}
	}
}

// TestProcesses has rank 0 send messages of random sizes to two ranks in other processes, which
// send them back. All must come back unchanged and in order.
func TestProcesses(t *testing.T) {
	for _, inherit := range []bool{true, false} {
		t.Run(fmt.Sprintf("inherited=%t", inherit), func(t *testing.T) {
			n, procs := job(t, "echo", 3, inherit)
			rng := rand.New(rand.NewPCG(1, 2))
			var waiting [3][][]byte
			const each = 3000
			count := 0
			for to := 1; count < 2*each || len(waiting[1])+len(waiting[2]) > 0; to = 3 - to {
				if count < 2*each {
					data := make([]byte, rng.IntN(1<<rng.IntN(17))%(n.maxMsg+1))
					for i := range data {
						data[i] = byte(rng.Uint32())
					}
					done, err := n.ep.Send(&transport.Op{Peer: transport.Addr(to), Data: data})
					if done {
						waiting[to] = append(waiting[to], data)
						count++
					} else {
						require.ErrorIs(t, err, transport.ErrAgain)
					}
				}
				for _, c := range n.read(t) {
					require.Equal(t, transport.RecvDone, c.Kind)
					l := waiting[c.Peer]
					require.NotEmpty(t, l)
					require.True(t, bytes.Equal(l[0], c.Msg), "message of %d bytes", len(l[0]))
					waiting[c.Peer] = l[1:]
				}
			}
			for a := range 3 {
				require.True(t, n.av.(transport.Reacher).Reaches(transport.Addr(a)))
			}
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			require.NoError(t, n.ep.Shutdown(ctx))
			for _, p := range procs[1:] {
				require.NoError(t, p.cmd.Wait())
			}
		})
	}
}

// chatter is a rank that keeps sending numbered messages to all other ranks, and checks the
// messages from them.
type chatter struct {
	*node
	next       []uint64 // by rank: number of the next message to send to it
	got        []uint64 // by rank: number of messages received from it
	ended      []bool   // by rank: it has left or failed; true for this rank
	op         transport.Op
	buf        []byte // data of op
	down, left int    // number of PeerDown and of PeerLeft completions
}

func newChatter(n *node) *chatter {
	c := &chatter{node: n, next: make([]uint64, n.size), got: make([]uint64, n.size), ended: make([]bool, n.size), buf: make([]byte, 1<<16)}
	c.ended[n.rank] = true
	return c
}

// length returns the size in bytes of the message with the number seq.
func length(seq uint64) int { return 8 + int(seq*2654435761%(1<<(seq%15))) }

// run exchanges messages with the other ranks until end returns true. It returns an error if a
// message is wrong.
func (c *chatter) run(end func(*chatter) bool) error {
	for !end(c) {
		k, err := c.cq.Read(c.comp)
		if err != nil {
			return err
		}
		for _, e := range c.comp[:k] {
			switch e.Kind {
			case transport.RecvDone:
				seq := c.got[e.Peer]
				c.got[e.Peer]++
				if c.ended[e.Peer] || len(e.Msg) != length(seq) || binary.LittleEndian.Uint64(e.Msg) != seq {
					return fmt.Errorf("message %d of rank %d has %d bytes", seq, e.Peer, len(e.Msg))
				}
				for i, b := range e.Msg[8:] {
					if b != byte(seq+uint64(i)) {
						return fmt.Errorf("message %d of rank %d: byte %d", seq, e.Peer, i)
					}
				}
			case transport.PeerDown:
				c.down++
				c.ended[e.Peer] = true
			case transport.PeerLeft:
				c.left++
				c.ended[e.Peer] = true
			case transport.OpDone, transport.PeerNotice:
				return fmt.Errorf("completion of kind %d", e.Kind)
			}
		}
		if err := c.speak(); err != nil {
			return err
		}
	}
	return nil
}

// speak tries once to send the next message to each rank that has not ended.
func (c *chatter) speak() error {
	for to := range c.ended {
		if c.ended[to] {
			continue
		}
		seq := c.next[to]
		c.op.Peer, c.op.Data = transport.Addr(to), c.buf[:length(seq)]
		binary.LittleEndian.PutUint64(c.op.Data, seq)
		for i := range c.op.Data[8:] {
			c.op.Data[8+i] = byte(seq + uint64(i))
		}
		done, err := c.ep.Send(&c.op)
		switch {
		case done:
			c.next[to]++
		case errors.Is(err, transport.ErrAgain):
			runtime.Gosched()
		case !errors.Is(err, transport.ErrPeerDown) && !errors.Is(err, transport.ErrPeerLeft):
			return err
		}
	}
	return nil
}

// TestKilled kills one of three processes, which exchange messages, at a random moment. The other
// two must report PeerDown within two seconds, and all messages that arrive before must be correct.
// No file may be left in /dev/shm or in the directory for temporary files.
func TestKilled(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	before := names(t, "/dev/shm")
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	rounds := 20
	if testing.Short() {
		rounds = 4
	}
	for range rounds {
		n, procs := job(t, "chatter", 3, rng.IntN(2) == 0)
		c := newChatter(n)
		require.NoError(t, c.run(func(c *chatter) bool { return c.got[1] > 0 && c.got[2] > 0 }))
		at := time.Now().Add(time.Duration(rng.IntN(20_000)) * time.Microsecond)
		require.NoError(t, c.run(func(*chatter) bool { return time.Now().After(at) }))
		require.NoError(t, procs[1].cmd.Process.Kill())
		killed := time.Now()
		require.NoError(t, c.run(func(c *chatter) bool { return c.down > 0 || time.Since(killed) > deadline }))
		require.Less(t, time.Since(killed), 2*time.Second)
		require.Equal(t, 1, c.down)
		require.True(t, c.ended[1])
		require.Error(t, procs[1].cmd.Wait())
		// Rank 2 ends without an error after it has reported PeerDown and called Shutdown.
		require.NoError(t, procs[2].cmd.Wait())
		require.NoError(t, c.run(func(c *chatter) bool { return c.left > 0 }))
		require.NoError(t, n.Close())
	}
	require.ElementsMatch(t, before, names(t, "/dev/shm"))
	require.Empty(t, names(t, os.TempDir()))
}

// TestKilledWhileAsleep kills the process of a rank while the other rank is about to Wait. The Wait
// must end within two seconds, and the rank must report PeerDown.
func TestKilledWhileAsleep(t *testing.T) {
	n, procs := job(t, "echo", 2, true)
	n.retry(t, &transport.Op{Peer: 1, Data: []byte("hello")})
	n.await(t, transport.RecvDone)
	require.Eventually(t, func() bool { n.read(t); return n.cq.Arm() }, deadline, time.Microsecond)
	require.NoError(t, procs[1].cmd.Process.Kill())
	killed := time.Now()
	require.NoError(t, n.cq.Wait(deadline))
	require.Less(t, time.Since(killed), 2*time.Second)
	c := n.await(t, transport.PeerDown)
	require.ErrorIs(t, c.Err, transport.ErrPeerDown)
	require.Less(t, time.Since(killed), 2*time.Second)
}

// retry calls Send until it succeeds. Until then it must return ErrAgain.
func (n *node) retry(t *testing.T, op *transport.Op) {
	t.Helper()
	require.Eventually(t, func() bool {
		done, err := n.ep.Send(op)
		if err != nil {
			require.ErrorIs(t, err, transport.ErrAgain)
		}
		return done
	}, deadline, 100*time.Microsecond)
}

// names returns the names of the files in a directory. For /dev/shm it returns only those that
// contain weft.
func names(t *testing.T, dir string) []string {
	t.Helper()
	l, err := os.ReadDir(dir)
	require.NoError(t, err)
	var s []string
	for _, e := range l {
		if dir != "/dev/shm" || strings.Contains(e.Name(), "weft") {
			s = append(s, e.Name())
		}
	}
	return s
}
