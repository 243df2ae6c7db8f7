//go:build libfabric

package fi

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestCounter sets a counter, adds to it and waits for it, without any operation that it could
// count.
func TestCounter(t *testing.T) {
	eachRDM(t, func(t *testing.T, prov string) {
		a, _ := openPair(t, setup{prov: prov})
		idle, err := a.domain.OpenCounter(CntrAttr{})
		require.NoError(t, err)
		require.ErrorIs(t, idle.Wait(0, 0), ErrInvalid, "the counter was opened with WaitNone")
		require.NoError(t, idle.Close())

		n, err := a.domain.OpenCounter(CntrAttr{Wait: WaitUnspec})
		require.NoError(t, err)
		require.NoError(t, n.Set(0))
		require.NoError(t, n.SetErr(0))
		require.NoError(t, n.Add(7))
		require.NoError(t, n.Add(35))
		require.EqualValues(t, 42, n.Read())
		require.NoError(t, n.AddErr(3))
		require.EqualValues(t, 3, n.ReadErr())
		require.EqualValues(t, 42, n.Read())
		require.NoError(t, n.SetErr(0))
		require.Zero(t, n.ReadErr())
		require.NoError(t, n.Set(5))
		require.EqualValues(t, 5, n.Read())

		require.NoError(t, n.Wait(5, -1))
		start := time.Now()
		require.ErrorIs(t, n.Wait(6, 20*time.Millisecond), ErrTimedOut)
		require.GreaterOrEqual(t, time.Since(start), 19*time.Millisecond, "too early")

		waited := make(chan error)
		go func() { waited <- n.Wait(6, -1) }() // ends after the Add below; the test then waits for it
		time.Sleep(5 * time.Millisecond)
		require.NoError(t, n.Add(1))
		select {
		case err = <-waited:
			require.NoError(t, err)
		case <-time.After(testTimeout):
			t.Fatal("Add did not wake Wait")
		}

		require.NoError(t, n.Close())
		require.NoError(t, n.Close())
		require.Zero(t, n.Read())
		require.Zero(t, n.ReadErr())
		require.ErrorIs(t, n.Add(1), ErrClosed)
		require.ErrorIs(t, n.Wait(1, 0), ErrClosed)
		bytes, err := a.domain.OpenCounter(CntrAttr{Bytes: true})
		if LibraryVersion() < MakeVersion(2, 0) {
			require.ErrorIs(t, err, ErrNotSupported)
			return
		}
		if prov == "sockets" {
			require.ErrorIs(t, err, ErrNotSupported)
			return
		}
		require.NoError(t, err)
		require.NoError(t, bytes.Close())
	})
}

// TestCounterCompletions checks that counters count their endpoints' operations, while the queue,
// bound with FlagSelectiveCompletion, reports only operations with FlagCompletion. The test calls
// Release for the contexts of the other operations.
func TestCounterCompletions(t *testing.T) {
	eachRDM(t, func(t *testing.T, prov string) {
		type counters struct{ sent, received *Counter }
		of := map[*node]counters{}
		a, b := openPair(t, setup{
			prov: prov, bind: FlagTransmit | FlagRecv | FlagSelectiveCompletion,
			hints: func(i *Info) { i.Tx.OpFlags, i.Rx.OpFlags = 0, 0 },
			open: func(n *node) {
				sent, err := n.domain.OpenCounter(CntrAttr{Wait: WaitUnspec})
				require.NoError(t, err)
				received, err := n.domain.OpenCounter(CntrAttr{Wait: WaitUnspec})
				require.NoError(t, err)
				require.NoError(t, n.ep.BindCounter(sent, FlagSend))
				require.NoError(t, n.ep.BindCounter(received, FlagRecv))
				of[n] = counters{sent, received}
			},
		})
		const count = 10
		recvs, sends := make([]*Context, count), make([]*Context, count)
		for i := range recvs {
			recvs[i], sends[i] = NewContext(i), NewContext(i)
			b.post(func() error { return b.ep.TRecv(make([]byte, 16), Desc{}, b.peer, uint64(i), 0, recvs[i]) })
		}
		for i := range sends {
			a.post(func() error { return a.ep.TSend(make([]byte, 16), Desc{}, a.peer, uint64(i), sends[i]) })
		}
		a.until("all is counted", func() bool {
			return of[a].sent.Read() == count && of[b].received.Read() == count
		})
		require.NoError(t, of[b].received.Wait(count, testTimeout))
		require.Zero(t, of[b].sent.Read())
		require.Zero(t, of[a].received.ReadErr())
		if prov == "net" { // net reports every operation nevertheless
			for i := range recvs {
				b.wait(recvs[i])
				a.wait(sends[i])
			}
		}
		a.quiet()
		b.quiet()
		for i := range recvs {
			require.Equal(t, prov != "net", sends[i].InFlight())
			require.Equal(t, prov != "net", recvs[i].InFlight())
			recvs[i].Release()
			sends[i].Release()
			require.False(t, recvs[i].InFlight())
			require.False(t, sends[i].InFlight())
		}

		msg := &TMsg{Msg: Msg{Bufs: [][]byte{make([]byte, 16)}, Addr: b.peer, Context: recvs[0]}, Tag: 9}
		b.post(func() error { return b.ep.TRecvMsg(msg, FlagCompletion) })
		a.post(func() error { return a.ep.TSend(make([]byte, 16), Desc{}, a.peer, 9, sends[0]) })
		b.wait(recvs[0])
		a.until("it is counted", func() bool { return of[a].sent.Read() == count+1 })
		sends[0].Release()

		// Without a context the caller pins the buffer, until the counter shows that the send has
		// ended.
		var pins runtime.Pinner
		out, in := pattern(make([]byte, 16), 1), make([]byte, 16)
		pins.Pin(&out[0])
		msg.Bufs = [][]byte{in}
		b.post(func() error { return b.ep.TRecvMsg(msg, FlagCompletion) })
		a.post(func() error {
			return a.ep.TSendMsg(&TMsg{Msg: Msg{Bufs: [][]byte{out}, Addr: a.peer}, Tag: 9}, 0)
		})
		b.wait(recvs[0])
		a.until("it is counted", func() bool { return of[a].sent.Read() == count+2 })
		pins.Unpin()
		require.Equal(t, out, in)

		require.ErrorIs(t, of[b].received.Close(), ErrBusy)
		require.NoError(t, a.ep.Close())
		require.NoError(t, b.ep.Close())
		require.NoError(t, of[a].sent.Close())
		require.NoError(t, of[a].received.Close())
		require.NoError(t, of[b].sent.Close())
		require.NoError(t, of[b].received.Close())
	})
}
