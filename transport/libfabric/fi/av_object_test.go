//go:build libfabric

package fi

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// openEQ opens an event queue of the domain's fabric and closes it when the test ends.
func openEQ(t *testing.T, d *Domain) *EQ {
	t.Helper()
	eq, err := d.Fabric().OpenEQ(EQAttr{Wait: WaitUnspec})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, eq.Close()) })
	return eq
}

// nextEvent waits for an event or an error of the queue.
func nextEvent(t *testing.T, eq *EQ) (*EQEvent, *EQError) {
	t.Helper()
	ev, err := eq.SRead(testTimeout, 0)
	if errors.Is(err, ErrAvail) {
		failed, err := eq.ReadErr(0)
		require.NoError(t, err)
		return nil, failed
	}
	require.NoError(t, err)
	return ev, nil
}

func TestAVAsync(t *testing.T) {
	eachAV(t, func(t *testing.T, facts avFacts, d *Domain) {
		eq := openEQ(t, d)
		v := openAV(t, d, AVAttr{Flags: FlagEvent})
		addrs := testAddrs(t, d, 6)
		out := make([]Addr, 6)
		if facts.async {
			_, err := v.Insert(addrs[:1], out[:1], 0, 1)
			require.ErrorIs(t, err, ErrNoEQ, "before a queue is bound")
		}
		err := v.BindEQ(eq, 0)
		if v2 && facts.prov != "sockets" { // address vectors of 2.x have no events
			require.ErrorIs(t, err, ErrNotSupported)
			return
		}
		require.NoError(t, err)
		require.ErrorIs(t, eq.Close(), ErrBusy, "the vector needs the queue")

		n, err := v.Insert(addrs[:5], out[:5], 0, 77)
		require.NoError(t, err)
		require.Zero(t, n)
		if !facts.async { // the insertion is complete when Insert returns, and there is no event
			require.Equal(t, []Addr{0, 1, 2, 3, 4}, out[:5])
			_, err := eq.SRead(10*time.Millisecond, 0)
			require.ErrorIs(t, err, ErrAgain)
			return
		}
		ev, failed := nextEvent(t, eq)
		require.Nil(t, failed)
		require.Equal(t, EventAVComplete, ev.Type)
		require.Equal(t, uintptr(77), ev.Context)
		require.Equal(t, uint64(5), ev.Data, "inserted")
		require.Equal(t, []Addr{0, 1, 2, 3, 4}, out[:5])

		// An insertion of no addresses causes an event, too.
		_, err = v.Insert(nil, nil, 0, 78)
		require.NoError(t, err)
		ev, failed = nextEvent(t, eq)
		require.Nil(t, failed)
		require.Equal(t, uintptr(78), ev.Context)
		require.Zero(t, ev.Data)

		// One address fails, after a valid one.
		_, err = v.Insert([][]byte{addrs[5], sockaddr("127.0.0.1", 0)}, nil, 0, 79)
		require.NoError(t, err)
		ev, failed = nextEvent(t, eq)
		require.Nil(t, ev)
		require.Equal(t, uintptr(79), failed.Context)
		require.Equal(t, uint64(1), failed.Data, "position of the failed address")
		require.NotZero(t, failed.Err)
		ev, failed = nextEvent(t, eq)
		require.Nil(t, failed)
		require.Equal(t, uintptr(79), ev.Context)
		require.Equal(t, uint64(1), ev.Data, "inserted")

		_, err = v.Insert([][]byte{addrs[5], {1, 2}}, nil, 0, 80)
		require.ErrorIs(t, err, ErrInvalid, "addresses of different lengths")
		if facts.sym {
			_, err = v.InsertSym("127.0.0.2", 2, "4000", 2, nil, 0)
			require.NoError(t, err)
			for inserted := 0; inserted < 4; { // sockets writes one event per address
				ev, failed = nextEvent(t, eq)
				require.Nil(t, failed)
				inserted += int(ev.Data)
			}
			got, err := v.Lookup(9)
			require.NoError(t, err)
			require.Equal(t, sockaddr("127.0.0.3", 4001), got)
		}
		require.NoError(t, v.Close())
		require.NoError(t, eq.Close(), "no object needs the queue any more")
	})
}

func TestAVShared(t *testing.T) {
	eachAV(t, func(t *testing.T, facts avFacts, d *Domain) {
		attr := AVAttr{Type: AVTable, Count: 16, Name: fmt.Sprintf("weft-av-test-%d", os.Getpid())}
		first, err := d.OpenAV(attr)
		if !facts.shared {
			require.ErrorIs(t, err, ErrNotSupported)
			return
		}
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, first.Close()) })
		require.NotZero(t, first.Attr().MapAddr)
		addrs := testAddrs(t, d, 5)
		_, err = first.Insert(addrs, nil, 0, 0)
		require.NoError(t, err)

		attr.Flags = FlagRead
		second, err := d.OpenAV(attr)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, second.Close()) })
		for i, want := range addrs {
			got, err := second.Lookup(Addr(i))
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
		out := make([]Addr, 1)
		n, err := second.Insert(addrs[3:4], out, 0, 0)
		require.NoError(t, err, "insertion into a read-only vector finds the address")
		require.Equal(t, 1, n)
		require.Equal(t, Addr(3), out[0])

		attr.Name = ""
		_, err = d.OpenAV(attr)
		require.ErrorIs(t, err, ErrInvalid, "FlagRead needs a Name")
	})
}

func TestAVSet(t *testing.T) {
	eachAV(t, func(t *testing.T, facts avFacts, d *Domain) {
		v := openAV(t, d, AVAttr{Count: 16})
		_, err := v.Insert(testAddrs(t, d, 10), nil, 0, 0)
		require.NoError(t, err)
		even, err := v.OpenSet(AVSetAttr{Start: 0, End: AddrNotAvail - 1, Stride: 2})
		if !facts.sets {
			require.ErrorIs(t, err, ErrNotSupported)
			return
		}
		require.NoError(t, err)
		isMember := func(s *AVSet, a Addr) bool {
			if s.Insert(a) == nil {
				require.NoError(t, s.Remove(a))
				return false
			}
			return true
		}
		members := func(s *AVSet) (all []Addr) {
			for a := range Addr(10) {
				if isMember(s, a) {
					all = append(all, a)
				}
			}
			return all
		}
		require.Equal(t, []Addr{0, 2, 4, 6, 8}, members(even))
		group, err := even.Addr()
		require.NoError(t, err)
		require.NotEqual(t, AddrNotAvail, group)

		other, err := v.OpenSet(AVSetAttr{})
		require.NoError(t, err)
		require.Empty(t, members(other), "the set is empty at first")
		require.NoError(t, other.Insert(8))
		require.ErrorIs(t, other.Insert(8), ErrInvalid, "8 is a member")
		require.ErrorIs(t, other.Insert(10), ErrInvalid, "10 is not in the vector")
		require.ErrorIs(t, other.Remove(7), ErrInvalid, "7 is not a member")
		require.NoError(t, even.Diff(other))
		require.NoError(t, even.Union(other))
		require.NoError(t, other.Insert(9))
		require.NoError(t, other.Intersect(even))
		require.Equal(t, []Addr{8}, members(other))
		require.NoError(t, other.Insert(1))
		require.NoError(t, even.Union(other))
		require.Equal(t, []Addr{0, 1, 2, 4, 6, 8}, members(even))

		full, err := v.OpenSet(AVSetAttr{Count: 2, Start: 3, End: 4, Stride: 1})
		require.NoError(t, err)
		require.ErrorIs(t, full.Insert(5), ErrNoMemory)
		_, err = v.OpenSet(AVSetAttr{Count: 2, Start: 3, End: 5, Stride: 1})
		require.ErrorIs(t, err, ErrNoMemory)
		_, err = v.OpenSet(AVSetAttr{Start: 3, End: 2, Stride: 1})
		require.ErrorIs(t, err, ErrInvalid)

		require.ErrorIs(t, v.Close(), ErrBusy, "its sets need the vector")
		for _, s := range []*AVSet{full, other, even} {
			require.NoError(t, s.Close())
			require.NoError(t, s.Close())
			require.ErrorIs(t, s.Insert(1), ErrClosed)
			require.ErrorIs(t, s.Remove(1), ErrClosed)
			require.ErrorIs(t, s.Union(s), ErrClosed)
			_, err := s.Addr()
			require.ErrorIs(t, err, ErrClosed)
		}
	})
}

// TestAVKeys checks that calls that libfabric 1.17 lacks return ErrNotSupported, both with the
// headers of libfabric 1.17 and with newer ones, because these providers do not support the calls.
func TestAVKeys(t *testing.T) {
	eachAV(t, func(t *testing.T, _ avFacts, d *Domain) {
		v := openAV(t, d, AVAttr{})
		_, err := v.InsertAuthKey([]byte{1, 2, 3, 4}, 0)
		require.ErrorIs(t, err, ErrNotSupported)
		_, err = v.LookupAuthKey(0)
		require.ErrorIs(t, err, ErrNotSupported)
		require.ErrorIs(t, v.SetUserID(0, 7, 0), ErrNotSupported)
		if HeaderVersion.Major() < 2 {
			require.ErrorIs(t, v.RemoveAuthKey(0), ErrNotSupported)
		}
	})
}

func TestRxAndGroupAddr(t *testing.T) {
	require.Equal(t, Addr(5), RxAddr(5, 0, 0))
	require.Equal(t, Addr(0xA000000000000005), RxAddr(5, 0xA, 4))
	a, err := GroupAddr(5, 3)
	if HeaderVersion.Major() < 2 {
		require.ErrorIs(t, err, ErrNotSupported)
		return
	}
	require.NoError(t, err)
	require.Equal(t, Addr(0x300000005), a)
}

func TestAVClosing(t *testing.T) {
	eachAV(t, func(t *testing.T, _ avFacts, d *Domain) {
		v, err := d.OpenAV(AVAttr{Type: AVTable})
		require.NoError(t, err)
		require.ErrorIs(t, d.Close(), ErrBusy, "the vector needs the domain")
		addrs := testAddrs(t, d, 1)
		_, err = v.Insert(addrs, nil, 0, 0)
		require.NoError(t, err, "the domain is still open")

		ep, err := d.OpenEndpoint(d.Info())
		require.NoError(t, err)
		require.NoError(t, ep.BindAV(v))
		require.ErrorIs(t, v.Close(), ErrBusy, "the endpoint needs the vector")
		require.NoError(t, ep.Close())
		require.NoError(t, v.Close())
		require.NoError(t, v.Close(), "again")

		_, err = v.Insert(addrs, nil, 0, 0)
		require.ErrorIs(t, err, ErrClosed)
		_, err = v.InsertSvc("127.0.0.1", "4000", 0)
		require.ErrorIs(t, err, ErrClosed)
		_, err = v.InsertSym("127.0.0.1", 1, "4000", 1, nil, 0)
		require.ErrorIs(t, err, ErrClosed)
		_, err = v.Lookup(0)
		require.ErrorIs(t, err, ErrClosed)
		_, err = v.InsertAuthKey(nil, 0)
		require.ErrorIs(t, err, ErrClosed)
		_, err = v.LookupAuthKey(0)
		require.ErrorIs(t, err, ErrClosed)
		_, err = v.OpenSet(AVSetAttr{})
		require.ErrorIs(t, err, ErrClosed)
		require.ErrorIs(t, v.Remove([]Addr{0}), ErrClosed)
		require.ErrorIs(t, v.RemoveAuthKey(0), ErrClosed)
		require.ErrorIs(t, v.SetUserID(0, 0, 0), ErrClosed)
		require.ErrorIs(t, v.BindEQ(openEQ(t, d), 0), ErrClosed)
		require.Empty(t, v.StrAddr(addrs[0]))
	})
}
