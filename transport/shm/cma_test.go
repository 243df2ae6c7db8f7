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

// sideVariable is set in a child process: it runs rank 1 of the same test in the same binary. Its
// value is the value of transport.shm.single_copy, and may continue with a comma and a word.
const sideVariable = "WEFT_SHM_TEST_SIDE"

// asChild runs f as rank 1 and returns true, if this process is the child of the test.
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

// withChild opens rank 0 and starts the child. The test's cleanup waits for the child, unless the
// test does.
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
	t.Cleanup(func() { _ = cmd.Wait() }) // an error if the test has waited already
	single, _, _ := strings.Cut(how, ",")
	s, err := openSide(0, 2, memory, single)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s, cmd
}

// tell sends words to the other rank.
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

// hear waits for a word from the other rank.
func (s *side) hear() (uint64, error) {
	for end := time.Now().Add(deadline); len(s.received) == 0; {
		if err := s.poll(); err != nil {
			return 0, err
		}
		if len(s.received) == 0 && len(s.ends) > 0 { // its last words and its end may come with one Read
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

// finish polls until an operation has ended.
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

// half is half of the size of a rank's memory in random.
const half = 2 << 20

// random makes random transfers, several at a time: reads of the first half of
// the other rank's memory, which does not change, and writes to the second half, which
// no other transfer writes. It reads the written data back. It calls middle after half of
// the rounds.
func (s *side) random(rounds int, middle func()) error {
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
		if i == rounds/2 {
			middle()
		}
		var ops [6]outcome
		for k := range ops {
			o := &ops[k]
			var n int
			at := 0
			if k%2 == 0 { // each write uses its own third of the second half
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
			if k%2 == 0 { // read it back
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
	nothing := func() {}
	if asChild(t, func(s *side, _ string) error { return s.random(60, nothing) }) {
		return
	}
	for _, how := range bothWays {
		t.Run(how, func(t *testing.T) {
			s, cmd := withChild(t, how)
			require.NoError(t, s.random(60, nothing))
			require.NoError(t, cmd.Wait())
			require.Equal(t, how == "auto", s.direct(s.local(1)))
		})
	}
}

// refuse makes the kernel refuse copies to and from this process: it changes the user of the
// process, or, without the privilege for that, forbids to trace the process.
func refuse() error {
	if os.Geteuid() == 0 {
		return syscall.Setuid(65534)
	}
	return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}

// TestRealRefusal: the kernel refuses copies, from the beginning or after half of the transfers.
func TestRealRefusal(t *testing.T) {
	if asChild(t, func(s *side, how string) error {
		middle := func() {}
		if how == "auto,later" {
			middle = func() {
				if err := refuse(); err != nil {
					panic(err)
				}
			}
		} else if err := refuse(); err != nil {
			return err
		}
		if err := s.random(40, middle); err != nil {
			return err
		}
		if os.Getuid() == 65534 && s.direct(s.local(0)) {
			return errors.New("the kernel permits copies from another user's process")
		}
		return nil
	}) {
		return
	}
	for _, how := range []string{"auto,first", "auto,later"} {
		t.Run(how, func(t *testing.T) {
			s, cmd := withChild(t, how)
			require.NoError(t, s.random(40, func() {}))
			require.NoError(t, cmd.Wait())
			require.Equal(t, os.Geteuid() == 0, s.direct(s.local(1)), "rank 0 can copy if and only if it runs as root: then only the child is refused")
		})
	}
}

// TestKilledInTransfer kills the child while both ranks read and write. All operations must end,
// and afterwards no memory may change.
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
		for err := begin(s, ops); ; err = s.poll() { // until it is killed
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
		how := bothWays[i%2]
		t.Run(fmt.Sprintf("%s after %d", how, i*i*20), func(t *testing.T) {
			s, cmd := withChild(t, how)
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
			_ = cmd.Wait() // it was killed
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

// TestCloseUnderProcess closes regions that the child reads and writes. No byte of them may
// change after Close.
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
			// Many transfers of one piece, so that most of the time one is in the middle of
			// its piece, and two large transfers.
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
				// A Read that succeeds must have read everything before Close.
				if i := bytes.IndexByte(dst[:part], 0xEE); r.err == nil && i >= 0 {
					return fmt.Errorf("byte %d was read after Close", i)
				}
			}
		}
	}) {
		return
	}
	for _, how := range bothWays {
		t.Run(how, func(t *testing.T) {
			s, cmd := withChild(t, how)
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
		})
	}
}

// TestProbe writes wrong addresses and nonces to a probe line.
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
	p.pid = os.Getppid() // another process, which has other data at that address, or none
	require.False(t, d.probe(p))
	p.pid = pid
	zero := make([]byte, nonceSize)
	b.addr.Store(addressOf(zero))
	b.nonce[0].Store(0)
	b.nonce[1].Store(0)
	require.False(t, d.probe(p), "a nonce of zeros must not be accepted")
}
