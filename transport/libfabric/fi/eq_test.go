//go:build libfabric

package fi

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// custom is an event type that libfabric does not have.
const custom EventType = 1 << 16

// eachEQ runs a test with each provider and each wait object that its event queues support.
func eachEQ(t *testing.T, test func(*testing.T, offer, *Fabric, *EQ)) {
	eachOffer(t, func(t *testing.T, o offer) {
		info := o.info(t)
		f, err := OpenFabric(info)
		require.NoError(t, err)
		for _, w := range o.waits {
			t.Run(w.String(), func(t *testing.T) {
				q, err := f.OpenEQ(EQAttr{Wait: w, Flags: FlagWrite, Size: 16})
				require.NoError(t, err)
				test(t, o, f, q)
				require.NoError(t, q.Close())
				require.NoError(t, q.Close())
			})
		}
		require.NoError(t, f.Close())
	})
}

func TestEQOpen(t *testing.T) {
	eachOffer(t, func(t *testing.T, o offer) {
		f, err := OpenFabric(o.info(t))
		require.NoError(t, err)
		for wait := WaitNone; wait <= WaitPollFD; wait++ {
			q, err := f.OpenEQ(EQAttr{Wait: wait})
			if !slices.Contains(o.waits, wait) {
				require.Error(t, err, wait)
				continue
			}
			require.NoError(t, err, wait)
			require.ErrorIs(t, f.Close(), ErrBusy)
			require.NoError(t, q.Close())
		}
		for size := 1; size <= 1<<12; size *= 4 {
			q, err := f.OpenEQ(EQAttr{Size: size})
			require.NoError(t, err)
			require.NoError(t, q.Close())
		}
		_, err = f.OpenEQ(EQAttr{Size: -1})
		require.ErrorIs(t, err, ErrInvalid)
		q, err := f.OpenEQ(EQAttr{Flags: FlagAffinity})
		require.Equal(t, o.affinity, err == nil)
		if err == nil {
			require.NoError(t, q.Close())
		}
		require.NoError(t, f.Close())
	})
}

// TestEQWriteRead checks that events are read in the order of writing, with all fields.
func TestEQWriteRead(t *testing.T) {
	eachEQ(t, func(t *testing.T, _ offer, f *Fabric, q *EQ) {
		_, err := q.Read(0)
		require.Equal(t, ErrAgain, err)
		_, err = q.ReadErr(0)
		require.Equal(t, ErrAgain, err)
		var want []*EQEvent
		for i := range 16 {
			ev := &EQEvent{Type: custom + EventType(i), FID: f.FID(), Context: uintptr(i), Data: uint64(i) << 40}
			switch i % 3 {
			case 1:
				ev.Type = EventNotify
				ev.Private = pattern(make([]byte, i), i)
			case 2:
				ev.Type = EventConnected
				ev.Context, ev.Data = 0, 0
				ev.Private = pattern(make([]byte, 200+i), i)
			}
			want = append(want, ev)
			require.NoError(t, q.Write(*ev, 0))
		}
		for i, w := range want {
			peeked, err := q.Read(FlagPeek)
			require.NoError(t, err)
			require.Equal(t, w, peeked, i)
			ev, err := q.Read(0)
			require.NoError(t, err)
			require.Equal(t, w, ev, i)
		}
		_, err = q.Read(0)
		require.Equal(t, ErrAgain, err)
		require.ErrorIs(t, q.Write(EQEvent{Private: make([]byte, 1<<12)}, 0), ErrMsgSize)
	})
}

func TestEQFlagWrite(t *testing.T) {
	eachOffer(t, func(t *testing.T, o offer) {
		f, err := OpenFabric(o.info(t))
		require.NoError(t, err)
		q, err := f.OpenEQ(EQAttr{})
		require.NoError(t, err)
		require.Equal(t, o.flagWrite, q.Write(EQEvent{}, 0) != nil)
		require.NoError(t, q.Close())
		require.NoError(t, f.Close())
	})
}

func TestEQSRead(t *testing.T) {
	eachEQ(t, func(t *testing.T, _ offer, _ *Fabric, q *EQ) {
		if q.wait == WaitNone {
			_, err := q.SRead(time.Millisecond, 0)
			require.Equal(t, ErrInvalid, err)
			return
		}
		for _, timeout := range []time.Duration{0, time.Nanosecond, 3 * time.Millisecond} {
			_, err := q.SRead(timeout, 0)
			require.Equal(t, ErrAgain, err)
		}
		want := &EQEvent{Type: custom, Data: 9}
		require.NoError(t, q.Write(*want, 0))
		for _, flags := range []Flags{FlagPeek, 0} {
			ev, err := q.SRead(testTimeout, flags)
			require.NoError(t, err)
			require.Equal(t, want, ev)
		}
		_, err := q.SRead(0, 0)
		require.Equal(t, ErrAgain, err)

		written := make(chan error, 1)
		go func() { written <- q.Write(*want, 0) }() // ends after the Write; the test waits for it below
		ev, err := q.SRead(testTimeout, 0)
		require.NoError(t, err)
		require.Equal(t, want, ev)
		require.NoError(t, <-written)
	})
}

// TestEQFD checks that after TryWait the queue's descriptor becomes readable when an event is
// written, unless another TryWait then returns an error.
func TestEQFD(t *testing.T) {
	eachEQ(t, func(t *testing.T, _ offer, f *Fabric, q *EQ) {
		fd, err := q.FD()
		if q.wait != WaitFD {
			require.ErrorIs(t, err, ErrNotSupported)
			if q.wait != WaitPollFD {
				require.ErrorIs(t, f.TryWait(q), ErrInvalid)
			}
			return
		}
		require.NoError(t, err)
		ready := func(timeout time.Duration) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(timeout.Milliseconds()))
			require.NoError(t, err)
			return n > 0
		}
		require.NoError(t, f.TryWait(q))
		require.False(t, ready(0))
		require.NoError(t, q.Write(EQEvent{Type: custom}, 0))
		require.True(t, f.TryWait(q) != nil || ready(testTimeout))
		_, err = q.Read(0)
		require.NoError(t, err)
		require.NoError(t, f.TryWait())
	})
}

func TestEQStrError(t *testing.T) {
	eachEQ(t, func(t *testing.T, _ offer, _ *Fabric, q *EQ) {
		require.NotEmpty(t, q.StrError(int(ErrConnRefused), nil))
		require.NotEmpty(t, q.StrError(1, []byte("data")))
	})
}

// TestEQConnection connects to a passive endpoint, which rejects the connection. The events at both
// sides must carry the private data of the other side.
func TestEQConnection(t *testing.T) {
	eachOffer(t, func(t *testing.T, o offer) {
		if o.types[0] != EPMsg {
			return
		}
		h := o.hints()
		h.EP.Type = EPMsg
		infos, err := GetInfo(HeaderVersion, "127.0.0.1", "", FlagSource, h)
		require.NoError(t, err)
		f, err := OpenFabric(infos[0])
		require.NoError(t, err)
		d, err := f.OpenDomain(infos[0])
		require.NoError(t, err)
		q, err := f.OpenEQ(EQAttr{Wait: WaitFD})
		require.NoError(t, err)
		pep, err := f.OpenPassiveEP(infos[0])
		require.NoError(t, err)
		require.NoError(t, pep.BindEQ(q))
		require.NoError(t, pep.Listen())
		name, err := pep.Name()
		require.NoError(t, err)

		cq, err := d.OpenCQ(CQAttr{})
		require.NoError(t, err)
		ep, err := d.OpenEndpoint(infos[0])
		require.NoError(t, err)
		client, err := f.OpenEQ(EQAttr{Wait: WaitFD})
		require.NoError(t, err)
		require.NoError(t, ep.BindEQ(client))
		require.NoError(t, ep.BindCQ(cq, FlagTransmit|FlagRecv))
		require.NoError(t, ep.Enable())
		require.NoError(t, ep.Connect(name, []byte("hello")))

		var peeked *EQEvent
		for end := time.Now().Add(testTimeout); peeked == nil && time.Now().Before(end); {
			peeked, err = q.Read(FlagPeek)
			if peeked == nil {
				require.ErrorIs(t, err, ErrAgain)
				_, err = client.Read(0) // sends the request, if the provider has no thread for that
				require.ErrorIs(t, err, ErrAgain)
			}
		}
		require.NotNil(t, peeked, "no request in time")
		require.Equal(t, EventConnReq, peeked.Type)
		require.NotNil(t, peeked.Info)
		require.False(t, peeked.Info.HasRequest(), "the queue still owns the request")
		ev, err := q.SRead(testTimeout, 0)
		require.NoError(t, err)
		require.Equal(t, EventConnReq, ev.Type)
		require.Equal(t, pep.FID(), ev.FID)
		require.Equal(t, "hello", string(ev.Private[:5]))
		require.Equal(t, EPMsg, ev.Info.EP.Type)
		require.True(t, ev.Info.HasRequest())

		require.NoError(t, pep.Reject(ev.Info, []byte("no")))
		_, err = client.SRead(testTimeout, 0)
		require.ErrorIs(t, err, ErrAvail)
		failed, err := client.ReadErr(0)
		require.NoError(t, err)
		require.Equal(t, ep.FID(), failed.FID)
		require.ErrorIs(t, failed, ErrConnRefused)
		require.Contains(t, failed.Error(), ErrConnRefused.Error())
		require.Equal(t, "no", string(failed.ErrData[:2]))
		_, err = client.ReadErr(0)
		require.Equal(t, ErrAgain, err)

		require.ErrorIs(t, q.Close(), ErrBusy)
		for _, c := range []interface{ Close() error }{ep, cq, pep, client, q, d, f} {
			require.NoError(t, c.Close())
		}
	})
}
