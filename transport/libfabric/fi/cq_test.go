//go:build libfabric

package fi

import (
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// TestCQOpenClose opens queues of every format and of many sizes, and checks the errors of calls on
// an empty queue, on one with WaitNone and on a closed one.
func TestCQOpenClose(t *testing.T) {
	eachRDM(t, func(t *testing.T, prov string) {
		a, _ := openPair(t, setup{prov: prov})
		for _, format := range []CQFormat{CQUnspec, CQContext, CQMsg, CQData, CQTagged} {
			for size := 0; size <= 1<<12; size = max(1, 4*size) {
				q, err := a.domain.OpenCQ(CQAttr{Size: size, Format: format})
				require.NoError(t, err)
				if format != CQUnspec {
					require.Equal(t, format, q.Format())
				} else {
					require.Equal(t, CQTagged, q.Format())
				}
				_, err = q.Read(make([]CQEntry, 1))
				require.ErrorIs(t, err, ErrAgain)
				_, err = q.ReadErr()
				require.ErrorIs(t, err, ErrAgain)
				_, err = q.Read(nil)
				require.ErrorIs(t, err, ErrInvalid)
				_, err = q.ReadFrom(make([]CQEntry, 2), make([]Addr, 1))
				require.ErrorIs(t, err, ErrInvalid)
				_, err = q.SRead(make([]CQEntry, 1), 0)
				require.ErrorIs(t, err, ErrInvalid, "the queue was opened with WaitNone")
				require.ErrorIs(t, q.Signal(), ErrInvalid)
				_, err = q.FD()
				require.ErrorIs(t, err, ErrNotSupported)
				_, _, err = q.PollFDs()
				require.ErrorIs(t, err, ErrNotSupported)
				require.NotEmpty(t, q.StrError(int(ErrTruncated)))
				require.NoError(t, q.Close())
				require.NoError(t, q.Close())
				_, err = q.Read(make([]CQEntry, 1))
				require.ErrorIs(t, err, ErrClosed)
				_, err = q.SRead(make([]CQEntry, 1), 0)
				require.ErrorIs(t, err, ErrClosed)
				_, err = q.ReadErr()
				require.ErrorIs(t, err, ErrClosed)
				require.ErrorIs(t, q.Signal(), ErrClosed)
				require.Empty(t, q.StrError(1))
			}
		}
		for _, attr := range []CQAttr{{Wait: WaitSet}, {Size: -1}, {Size: 1 << 60}} {
			_, err := a.domain.OpenCQ(attr)
			require.ErrorIs(t, err, ErrInvalid)
		}
		_, err := a.domain.OpenCounter(CntrAttr{Wait: WaitSet})
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorIs(t, a.cq.Close(), ErrBusy, "the endpoint needs the queue")
		require.ErrorIs(t, a.domain.Close(), ErrBusy)
		require.ErrorIs(t, a.av.Close(), ErrBusy)
	})
}

// TestCQFormats checks that completions have the fields of the queue's format, and zeros in the
// others.
func TestCQFormats(t *testing.T) {
	eachRDM(t, func(t *testing.T, prov string) {
		for _, format := range []CQFormat{CQContext, CQMsg, CQData, CQTagged} {
			a, b := openPair(t, setup{prov: prov, cq: CQAttr{Format: format}})
			const count, size = 5, 48
			var recvs [count]*Context
			for i := range recvs {
				recvs[i] = NewContext(i)
				b.post(func() error { return b.ep.TRecv(make([]byte, size), Desc{}, b.peer, 50+uint64(i), 0, recvs[i]) })
			}
			for i := range recvs {
				send := NewContext(nil)
				out := make([]byte, size-i)
				a.post(func() error { return a.ep.TSendData(out, Desc{}, uint64(i), a.peer, 50+uint64(i), send) })
				a.wait(send)
			}
			for i := range b.entries {
				b.entries[i] = CQEntry{Flags: 1, Len: 1, Buf: 1, Data: 99, Tag: 1}
			}
			for i, recv := range recvs {
				e := b.wait(recv)
				require.NotZero(t, e.OpContext())
				if format >= CQMsg {
					require.EqualValues(t, size-i, e.Len, "%s", format)
					require.Equal(t, FlagTagged|FlagRecv, e.Flags&(FlagTagged|FlagRecv), "%s", format)
				} else {
					require.Zero(t, e.Len)
					require.Zero(t, e.Flags)
				}
				if format >= CQData {
					require.EqualValues(t, i, e.Data, "%s", format)
				} else {
					require.Zero(t, e.Data)
					require.Zero(t, e.Buf)
				}
				if format >= CQTagged {
					require.EqualValues(t, 50+i, e.Tag)
				} else {
					require.Zero(t, e.Tag)
				}
			}
		}
	})
}

// TestCQWait checks that SRead waits until its timeout if nothing happens, and that a completion or
// Signal ends it earlier.
func TestCQWait(t *testing.T) {
	waits := map[string][]WaitObj{
		"shm":         {WaitYield, WaitUnspec},
		xnet:          {WaitUnspec, WaitFD, WaitPollFD},
		"tcp;ofi_rxm": {WaitUnspec, WaitFD, WaitPollFD},
		"udp;ofi_rxd": {WaitUnspec, WaitFD},
		"sockets":     {WaitUnspec, WaitFD, WaitMutexCond},
	}
	for _, prov := range rdm {
		for _, wait := range waits[prov] {
			t.Run(prov+" "+wait.String(), func(t *testing.T) {
				a, b := openPair(t, setup{prov: prov, cq: CQAttr{Format: CQTagged, Wait: wait}, sep: true})
				entries, from := make([]CQEntry, 4), make([]Addr, 4)
				start := time.Now()
				_, err := b.cq.SRead(entries, 20*time.Millisecond)
				require.ErrorIs(t, err, ErrAgain)
				require.GreaterOrEqual(t, time.Since(start), 19*time.Millisecond, "too early")
				_, err = b.cq.SReadFrom(entries, from, 0)
				require.ErrorIs(t, err, ErrAgain)

				// The first exchange makes the connection, which needs progress on both sides.
				recv, send := NewContext("recv"), NewContext("send")
				exchange := func() {
					b.post(func() error { return b.ep.TRecv(make([]byte, 8), Desc{}, b.peer, 1, 0, recv) })
					a.post(func() error { return a.ep.TSend(make([]byte, 8), Desc{}, a.peer, 1, send) })
				}
				exchange()
				b.wait(recv)
				a.wait(send)

				exchange()
				for deadline := time.Now().Add(testTimeout); recv.InFlight() || send.InFlight(); {
					require.True(t, time.Now().Before(deadline))
					_, err = b.cq.SReadFrom(entries, from, 10*time.Millisecond)
					if err != nil {
						require.ErrorIs(t, err, ErrAgain)
					}
					_, err = a.cq.SRead(entries, 10*time.Millisecond)
					if err != nil {
						require.ErrorIs(t, err, ErrAgain)
					}
				}

				woken := make(chan error)
				go func() { // ends after the Signal below; the test then waits for it
					_, err := b.cq.SRead(make([]CQEntry, 1), -1)
					woken <- err
				}()
				time.Sleep(10 * time.Millisecond)
				require.NoError(t, b.cq.Signal())
				select {
				case err = <-woken:
					require.ErrorIs(t, err, ErrAgain)
				case <-time.After(testTimeout):
					t.Fatal("Signal did not wake SRead")
				}
			})
		}
	}
}

// TestCQDescriptor waits for a message by sleeping on the queue's descriptor whenever TryWait
// permits that. The message must arrive.
func TestCQDescriptor(t *testing.T) {
	for _, prov := range []string{xnet, "tcp;ofi_rxm", "udp;ofi_rxd", "sockets"} {
		t.Run(prov, func(t *testing.T) {
			a, b := openPair(t, setup{prov: prov, cq: CQAttr{Format: CQTagged, Wait: WaitFD}})
			fd, err := b.cq.FD()
			if prov == "udp;ofi_rxd" { // rxd opens a queue with WaitFD, but has no descriptor
				require.ErrorIs(t, err, ErrNotSupported)
				return
			}
			require.NoError(t, err)
			require.NoError(t, syscall.SetNonblock(fd, true), "fd is a descriptor")
			recv, send := NewContext(nil), NewContext(nil)
			b.post(func() error { return b.ep.TRecv(make([]byte, 8), Desc{}, b.peer, 1, 0, recv) })
			b.until("the thread may sleep", func() bool { return b.fabric.TryWait(b.cq) == nil })
			a.post(func() error { return a.ep.TSend(make([]byte, 8), Desc{}, a.peer, 1, send) })
			for deadline := time.Now().Add(testTimeout); recv.InFlight(); a.poll() {
				require.True(t, time.Now().Before(deadline))
				if err := b.fabric.TryWait(b.cq); err == nil {
					require.GreaterOrEqual(t, pollFD(int32(fd), 20), 0)
				}
				b.poll()
			}
			a.wait(send)
		})
	}
}

// TestCQPollFDs checks the descriptors of a queue opened with WaitPollFD.
func TestCQPollFDs(t *testing.T) {
	for _, prov := range []string{xnet, "tcp;ofi_rxm"} {
		t.Run(prov, func(t *testing.T) {
			a, _ := openPair(t, setup{prov: prov, cq: CQAttr{Wait: WaitPollFD}})
			fds, _, err := a.cq.PollFDs()
			require.NoError(t, err)
			require.NotEmpty(t, fds)
			for _, p := range fds {
				require.NoError(t, syscall.SetNonblock(p.FD, true), "FD is a descriptor")
				require.NotZero(t, p.Events)
			}
			_, err = a.cq.FD()
			require.ErrorIs(t, err, ErrNotSupported)
		})
	}
}

// TestCQThreshold checks SReadThreshold. Every provider accepts a threshold, but only sockets uses
// it: there SReadThreshold returns at most that many completions.
func TestCQThreshold(t *testing.T) {
	eachRDM(t, func(t *testing.T, prov string) {
		a, b := openPair(t, setup{prov: prov})
		q, err := a.domain.OpenCQ(CQAttr{Wait: WaitUnspec, Threshold: true})
		require.NoError(t, err)
		_, err = q.SReadThreshold(make([]CQEntry, 4), 2, time.Millisecond)
		require.ErrorIs(t, err, ErrAgain)
		require.NoError(t, q.Close())
		if prov != "sockets" {
			return
		}
		c := openNode(t, setup{bind: FlagTransmit | FlagRecv, cq: CQAttr{Wait: WaitUnspec, Threshold: true}},
			a.info, a.fabric, a.domain)
		a.meet(c)
		var recvs [4]*Context
		for i := range recvs {
			recvs[i] = NewContext(i)
			require.NoError(t, c.ep.TRecv(make([]byte, 8), Desc{}, AddrUnspec, 1, 0, recvs[i]))
			send := NewContext(nil)
			a.other = b
			a.post(func() error { return a.ep.TSend(make([]byte, 8), Desc{}, a.peer, 1, send) })
			a.wait(send)
		}
		entries, got := make([]CQEntry, 8), 0
		for deadline := time.Now().Add(testTimeout); got < len(recvs); {
			require.True(t, time.Now().Before(deadline))
			n, err := c.cq.SReadThreshold(entries, 2, 100*time.Millisecond)
			if err != nil {
				require.ErrorIs(t, err, ErrAgain)
			}
			require.LessOrEqual(t, n, 2)
			got += n
		}
		_, err = c.cq.Read(entries)
		require.ErrorIs(t, err, ErrAgain)
	})
}

// pollFD waits up to ms milliseconds for fd to be readable (poll(2)). It returns 1 if fd is
// readable, 0 if not, and -1 after an error.
func pollFD(fd int32, ms uintptr) int {
	p := struct {
		fd      int32
		events  int16
		revents int16
	}{fd: fd, events: 1}
	n, _, e := syscall.Syscall(syscall.SYS_POLL, uintptr(unsafe.Pointer(&p)), 1, ms)
	if e != 0 && e != syscall.EINTR {
		return -1
	}
	return int(n)
}
