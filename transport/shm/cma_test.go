//go:build linux && !portable

package shm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
)

// sideVariable is an environment variable. A test sets it for a child process that runs the same
// test as rank 1. Its value is the value of transport.shm.single_copy, optionally followed by a
// comma and a word for the test.
const sideVariable = "WEFT_SHM_TEST_SIDE"

// asChild returns false in the process that runs the tests. In the child that withChild has
// started, it opens rank 1, calls f with it and with the value of sideVariable, and returns true.
func asChild(t *testing.T, f func(s *side, how string) error) bool {
	t.Helper()
	how, ok := os.LookupEnv(sideVariable)
	if !ok {
		return false
	}
	single, _, _ := strings.Cut(how, ",")
	s, err := openSide(1, 2, os.NewFile(3, "memory"), single)
	require.NoError(t, err)
	require.NoError(t, f(s, how))
	require.NoError(t, s.Close())
	return true
}

// withChild opens rank 0 of a job of two in this process, and starts a child process that runs the
// same test as rank 1. how is the value of sideVariable. The test may wait for the child; otherwise
// the test's cleanup does.
func withChild(t *testing.T, how string) (*side, *exec.Cmd) {
	t.Helper()
	memory, err := newMemory()
	require.NoError(t, err)
	defer memory.Close()
	name, _, _ := strings.Cut(t.Name(), "/")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+name+"$", "-test.timeout=50s")
	cmd.Env = append(os.Environ(), sideVariable+"="+how)
	cmd.ExtraFiles = []*os.File{memory}
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() }) // returns an error if the test has waited for the child
	single, _, _ := strings.Cut(how, ",")
	s, err := openSide(0, 2, memory, single)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s, cmd
}

// tell sends a message to the other rank. It consists of 64-bit words, which hear returns there.
func (s *side) tell(words ...uint64) error {
	op := &transport.Op{Peer: 1 - s.rank}
	for _, w := range words {
		op.Data = binary.NativeEndian.AppendUint64(op.Data, w)
	}
	for end := time.Now().Add(deadline); time.Now().Before(end); {
		done, err := s.e.Send(op)
		if done || err != nil && !errors.Is(err, transport.ErrAgain) {
			return err
		}
		if err := s.poll(); err != nil {
			return err
		}
	}
	return errors.New("the other rank does not receive")
}

// hear waits for the next word that the other rank has sent by tell. If the other rank ends before
// that, hear returns its end as an error.
func (s *side) hear() (uint64, error) {
	for end := time.Now().Add(deadline); len(s.received) == 0; {
		if err := s.poll(); err != nil {
			return 0, err
		}
		// Check received again: one Read may return the last words of the other rank and its end.
		if len(s.received) == 0 && len(s.ends) > 0 {
			return 0, s.ends[0].Err
		}
		if time.Now().After(end) {
			return 0, errors.New("the other rank does not send")
		}
	}
	w := s.received[0]
	s.received = s.received[1:]
	return w, nil
}

// finish polls rank s until an operation has ended, and returns the operation's error.
func (s *side) finish(o *outcome) error {
	for end := time.Now().Add(deadline); !o.done; {
		if err := s.poll(); err != nil {
			return err
		}
		if time.Now().After(end) {
			return errors.New("an operation does not end")
		}
	}
	return o.err
}

// half is half of the size, in bytes, of the memory that each rank registers in random.
const half = 2 << 20

// random makes random transfers, six at a time: reads of the first half of the other rank's memory,
// which no rank changes, and writes to the second half, each to a third of its own. random reads
// the written data back.
func (s *side) random(rounds int) error {
	mine := append(noise(uint64(s.rank), half), make([]byte, half)...)
	mr, err := s.RegisterMemory(mine, transport.RemoteRead|transport.RemoteWrite)
	if err != nil {
		return err
	}
	if err := s.tell(mr.Key()); err != nil {
		return err
	}
	key, err := s.hear()
	if err != nil {
		return err
	}
	want := append(noise(uint64(1-s.rank), half), make([]byte, half)...)
	rnd := rand.New(rand.NewPCG(uint64(s.rank), 99))
	span := func(from, to int) (int, int) {
		n := min(to-from, 1<<rnd.IntN(20)+rnd.IntN(1000))
		return from + rnd.IntN(to-from-n+1), n
	}
	buf := make([]byte, 6*half)
	for i := range rounds {
		var ops [6]outcome
		for k := range ops {
			o := &ops[k]
			var n int
			at := 0
			if k%2 == 0 { // a write, to its own third of the second half
				at, n = span(half+k/2*half/3, half+(k/2+1)*half/3)
			} else {
				at, n = span(0, half)
			}
			o.Op = transport.Op{Peer: 1 - s.rank, RemoteKey: key, RemoteAddr: uint64(at), Data: buf[k*half:][:n]}
			if k%2 == 0 {
				for j := range o.Data {
					o.Data[j] = byte(j*7 + i*13 + k)
				}
				copy(want[at:], o.Data)
			}
			if err := s.post(o, k%2 == 0); err != nil {
				return err
			}
		}
		for k := range ops {
			o := &ops[k]
			if err := s.finish(o); err != nil {
				return fmt.Errorf("round %d, operation %d: %w", i, k, err)
			}
			if k%2 == 0 { // a write: read the written bytes back
				clear(o.Data)
				if err := s.post(o, false); err != nil {
					return err
				}
				if err := s.finish(o); err != nil {
					return fmt.Errorf("round %d, operation %d: %w", i, k, err)
				}
			}
			if !bytes.Equal(o.Data, want[o.RemoteAddr:][:len(o.Data)]) {
				return fmt.Errorf("round %d, operation %d: %d bytes at %d are wrong", i, k, len(o.Data), o.RemoteAddr)
			}
		}
	}
	if err := s.tell(0); err != nil {
		return err
	}
	if _, err := s.hear(); err != nil {
		return err
	}
	return mr.Close()
}

func TestRandomTransfers(t *testing.T) {
	if asChild(t, func(s *side, _ string) error { return s.random(60) }) {
		return
	}
	s, cmd := withChild(t, "auto")
	require.NoError(t, s.random(60))
	require.NoError(t, cmd.Wait())
}

// refuse makes the kernel refuse process_vm_readv and process_vm_writev on this process by other
// processes without privileges. As root it changes the user of this process. Otherwise it makes the
// process not dumpable (PR_SET_DUMPABLE).
func refuse() error {
	if os.Geteuid() == 0 {
		return syscall.Setuid(65534)
	}
	return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}

// TestRealRefusal makes the kernel refuse copies between the two ranks, from the beginning or after
// a first transfer. If the test runs as root, the kernel refuses the copies that the child makes,
// else those that the parent makes (see refuse). In the first case, the rank whose copies are
// refused does not reach the other rank's memory. In the second case its next transfer fails, and
// the ranks report each other as down.
func TestRealRefusal(t *testing.T) {
	// begin exchanges keys with the other rank, and returns the key of the other rank's memory.
	begin := func(s *side) (uint64, error) {
		mr, err := s.RegisterMemory(make([]byte, 8), transport.RemoteRead|transport.RemoteWrite)
		if err != nil {
			return 0, err
		}
		if err := s.tell(mr.Key()); err != nil {
			return 0, err
		}
		return s.hear()
	}
	// try reads and writes the other rank's memory.
	try := func(s *side, key uint64) error {
		for _, write := range []bool{false, true} {
			o := &outcome{Op: transport.Op{Peer: 1 - s.rank, RemoteKey: key, Data: make([]byte, 8)}}
			if err := s.post(o, write); err != nil {
				return err
			}
			if err := s.finish(o); err != nil {
				return err
			}
		}
		return nil
	}
	// check tries to access the other rank's memory. refused says whether the kernel must refuse
	// that; if it does otherwise, check returns an error.
	check := func(s *side, key uint64, refused bool) error {
		if reaches := s.e.ReachesRegion(1-s.rank, key); reaches == refused {
			return fmt.Errorf("rank %d reaches the other one: %v", s.rank, reaches)
		}
		if err := try(s, key); err == nil == refused || err != nil && !errors.Is(err, transport.ErrNotSupported) {
			return fmt.Errorf("rank %d: transfers that the kernel refuses (%v): %w", s.rank, refused, err)
		}
		return nil
	}
	later := func(how string) bool { return strings.HasSuffix(how, "later") }
	asRoot := func() bool { return os.Geteuid() == 0 }
	if asChild(t, func(s *side, how string) error {
		root := asRoot()
		if !later(how) {
			if err := refuse(); err != nil {
				return err
			}
		}
		key, err := begin(s)
		if err != nil {
			return err
		}
		// Without root, the kernel refuses only the parent's copies.
		if err := check(s, key, root && !later(how)); err != nil {
			return err
		}
		if err := s.tell(0); err != nil {
			return err
		}
		if _, err := s.hear(); err != nil || !later(how) {
			return err
		}
		if err := refuse(); err != nil {
			return err
		}
		if root {
			if err := try(s, key); !errors.Is(err, transport.ErrPeerDown) {
				return fmt.Errorf("a transfer that the kernel refuses later: %w", err)
			}
		} else if err := s.tell(0); err != nil {
			return err
		}
		_, err = s.hear()
		if len(s.ends) != 1 || s.ends[0].Kind != transport.PeerDown {
			return fmt.Errorf("the other rank is not reported as down: %w", err)
		}
		return nil
	}) {
		return
	}
	for _, how := range []string{"auto,first", "auto,later"} {
		t.Run(how, func(t *testing.T) {
			s, cmd := withChild(t, how)
			key, err := begin(s)
			require.NoError(t, err)
			if later(how) { // the child has not refused yet
				require.NoError(t, check(s, key, false))
			} else {
				require.NoError(t, check(s, key, !asRoot()))
			}
			// The child marks this rank as failed after it has heard from it. Messages that this rank has not
			// read by then are lost, so it reads the child's first.
			_, err = s.hear()
			require.NoError(t, err)
			require.NoError(t, s.tell(0))
			if !later(how) {
				require.NoError(t, cmd.Wait())
				return
			}
			if !asRoot() {
				_, err = s.hear() // the child refuses from now on
				require.NoError(t, err)
				require.ErrorIs(t, try(s, key), transport.ErrPeerDown)
			}
			_, err = s.hear()
			require.Error(t, err)
			require.Len(t, s.ends, 1)
			require.Equal(t, transport.PeerDown, s.ends[0].Kind)
			require.NoError(t, cmd.Wait())
		})
	}
}

// TestKilledInTransfer kills the child while both ranks read and write each other's memory. All
// operations of rank 0 must end. After its end an operation's buffer must not change, and after its
// Close the region of rank 0 must not change.
func TestKilledInTransfer(t *testing.T) {
	const n = 8 << 20
	begin := func(s *side, ops []outcome) error {
		mr, err := s.RegisterMemory(make([]byte, n), transport.RemoteRead|transport.RemoteWrite)
		if err != nil {
			return err
		}
		if err := s.tell(mr.Key()); err != nil {
			return err
		}
		key, err := s.hear()
		if err != nil {
			return err
		}
		for i := range ops {
			ops[i].Op = transport.Op{Peer: 1 - s.rank, RemoteKey: key, Data: make([]byte, n)}
			if err := s.post(&ops[i], i%2 == 1); err != nil {
				return err
			}
		}
		return nil
	}
	if asChild(t, func(s *side, _ string) error {
		ops := make([]outcome, 4)
		for err := begin(s, ops); ; err = s.poll() { // until rank 0 kills this process
			if err != nil {
				return err
			}
			for i := range ops {
				if ops[i].done {
					if err := s.post(&ops[i], i%2 == 1); err != nil {
						return err
					}
				}
			}
		}
	}) {
		return
	}
	for i := range 8 {
		t.Run(fmt.Sprintf("after %d", i*i*20), func(t *testing.T) {
			s, cmd := withChild(t, "auto")
			ops := make([]outcome, 6)
			require.NoError(t, begin(s, ops))
			for range i * i * 20 {
				require.NoError(t, s.poll())
			}
			require.NoError(t, cmd.Process.Kill())
			for k := range ops {
				if err := s.finish(&ops[k]); err != nil {
					require.ErrorIs(t, err, transport.ErrPeerDown)
				}
				for j := range ops[k].Data {
					ops[k].Data[j] = 0xEE
				}
			}
			for end := time.Now().Add(deadline); len(s.ends) == 0 && time.Now().Before(end); {
				require.NoError(t, s.poll())
			}
			require.Len(t, s.ends, 1)
			_ = cmd.Wait() // returns an error, because the child was killed
			r := s.transfers.regions.slots[0]
			mem := r.buf
			require.NoError(t, r.Close())
			copy(mem, noise(1, n))
			was := bytes.Clone(mem)
			for range 1000 {
				require.NoError(t, s.poll())
			}
			require.True(t, bytes.Equal(was, mem))
			for k := range ops {
				require.Equal(t, n, bytes.Count(ops[k].Data, []byte{0xEE}), "touched after the operation has ended")
			}
		})
	}
}

// TestCloseUnderProcess has rank 0 close regions while the child reads and writes them. After Close
// no byte of a region may change, and no read of the child that succeeds may return bytes that rank
// 0 has stored after Close.
func TestCloseUnderProcess(t *testing.T) {
	const n = 1 << 20
	if asChild(t, func(s *side, _ string) error {
		src, dst := bytes.Repeat([]byte{0xAA}, n), make([]byte, n)
		for key := uint64(0); ; {
			if len(s.received) > 0 {
				if key = s.received[len(s.received)-1]; key == 1 {
					return nil
				}
				s.received = nil
			}
			// Many transfers that are copied in one piece, so that most of the time a copy
			// is under way, and a few large ones.
			for i := range 40 {
				part := splitMin - 1
				if i >= 38 {
					part = n
				}
				w := &outcome{Op: transport.Op{RemoteKey: key, Data: src[:part]}}
				r := &outcome{Op: transport.Op{RemoteKey: key, Data: dst[:part]}}
				for _, o := range []*outcome{w, r} {
					if err := s.post(o, o == w); err != nil {
						return err
					}
				}
				for _, o := range []*outcome{w, r} {
					if err := s.finish(o); err != nil && !errors.Is(err, transport.ErrKey) {
						return err
					}
				}
				// A Read that succeeds must not return bytes that rank 0 has stored after Close.
				if i := bytes.IndexByte(dst[:part], 0xEE); r.err == nil && i >= 0 {
					return fmt.Errorf("byte %d was read after Close", i)
				}
			}
		}
	}) {
		return
	}
	s, cmd := withChild(t, "auto")
	mem := make([]byte, n)
	canary := bytes.Repeat([]byte{0xEE}, n)
	used := 0
	for i := range 150 {
		clear(mem)
		mr, err := s.RegisterMemory(mem, transport.RemoteRead|transport.RemoteWrite)
		require.NoError(t, err)
		require.NoError(t, s.tell(mr.Key()))
		for end := time.Now().Add(deadline); mem[0] == 0 && time.Now().Before(end); {
			require.NoError(t, s.poll())
		}
		for range i * 7 % 400 {
			require.NoError(t, s.poll())
		}
		if mem[0] == 0xAA {
			used++
		}
		require.NoError(t, mr.Close())
		for to := splitMin; to > 0; to -= pageSize { // in the opposite direction of the copies
			copy(mem[to-pageSize:to], canary)
		}
		copy(mem[splitMin:], canary)
		for range 50 {
			require.NoError(t, s.poll())
		}
		require.True(t, bytes.Equal(canary, mem), "touched after Close")
	}
	require.NotZero(t, used)
	require.NoError(t, s.tell(1))
	for len(s.ends) == 0 {
		require.NoError(t, s.poll())
	}
	require.NoError(t, cmd.Wait())
}

// TestProbe writes wrong addresses and nonces to the line in shared memory from which a rank learns
// where a peer keeps a nonce. probe, which reads the nonce from the peer's process to check that
// copies by the kernel reach that process, must return false.
func TestProbe(t *testing.T) {
	all := sides(t, 2, "auto")
	d, p := all[0], all[0].local(1)
	require.NoError(t, d.authenticate(p))
	b := &d.seg.claims(1).probe
	require.True(t, d.probe(p))
	addr, nonce := b.addr.Load(), b.nonce[1].Load()
	for _, bad := range []uint64{0, 4096, 1<<64 - 8, addr + 4} {
		b.addr.Store(bad)
		require.False(t, d.probe(p), "address %#x", bad)
	}
	b.addr.Store(addr)
	b.nonce[1].Store(nonce + 1)
	require.False(t, d.probe(p))
	b.nonce[1].Store(nonce)
	require.True(t, d.probe(p))
	pid := p.pid
	p.pid = os.Getppid() // another process, which has no nonce at that address
	require.False(t, d.probe(p))
	p.pid = pid
	zero := make([]byte, nonceSize)
	b.addr.Store(addressOf(zero))
	b.nonce[0].Store(0)
	b.nonce[1].Store(0)
	require.False(t, d.probe(p), "a nonce of zeros must not be accepted")
}
