//go:build libfabric

package fi

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// cmProviders are the providers with endpoints of type EPMsg.
var cmProviders = []struct {
	prov     string
	dataSize int  // what CMDataSize returns
	early    bool // Connect itself returns an error if no endpoint listens at the address
	unaware  bool // a send after the end of the connection succeeds
}{
	{"tcp", 256, false, false},
	{in2("tcp", "net"), 256, false, false},
	{"sockets", 256, true, true},
}

// side is one end of a connection.
type side struct {
	t      *testing.T
	info   *Info
	fabric *Fabric
	domain *Domain
	eq     *EQ
	cq     *CQ
	ep     *Endpoint
}

// msgInfo returns an Info for endpoints of type EPMsg. If dest is not nil, it is the address of the
// peer. Otherwise flags say whether 127.0.0.1 is the local address (FlagSource) or the peer's.
func msgInfo(t *testing.T, prov string, flags Flags, dest []byte) *Info {
	t.Helper()
	hints := NewInfo()
	hints.Fabric.ProvName = prov
	hints.EP.Type = EPMsg
	hints.Caps = CapMsg | CapRMA
	hints.Mode = ModeContext | ModeContext2
	hints.Domain.MRMode = MRLocal | MRVirtAddr | MRAllocated | MRProvKey
	hints.AddrFormat = SockaddrIn
	var infos []*Info
	var err error
	if dest == nil {
		infos, err = GetInfo(HeaderVersion, "127.0.0.1", "0", flags, hints)
	} else {
		hints.DestAddr = dest
		infos, err = GetInfo(HeaderVersion, "", "", 0, hints)
	}
	require.NoError(t, err)
	return infos[0]
}

// listen opens a passive endpoint with an event queue and makes it listen.
func listen(t *testing.T, prov string) (*side, *PassiveEP) {
	t.Helper()
	s := &side{t: t, info: msgInfo(t, prov, FlagSource, nil)}
	var err error
	s.fabric, err = OpenFabric(s.info)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.fabric.Close()) })
	s.eq, err = s.fabric.OpenEQ(EQAttr{Wait: WaitUnspec})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.eq.Close()) })
	p, err := s.fabric.OpenPassiveEP(s.info)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	require.NoError(t, p.BindEQ(s.eq))
	require.NoError(t, p.Listen())
	return s, p
}

// open opens the side's endpoint with info, in a domain of its own.
func (s *side) open(info *Info) {
	s.t.Helper()
	var err error
	s.info = info
	s.domain, err = s.fabric.OpenDomain(info)
	require.NoError(s.t, err)
	domain := s.domain
	s.t.Cleanup(func() { require.NoError(s.t, domain.Close()) })
	s.cq, err = s.domain.OpenCQ(CQAttr{})
	require.NoError(s.t, err)
	cq := s.cq
	s.t.Cleanup(func() { require.NoError(s.t, cq.Close()) })
	s.endpoint(info)
}

// endpoint opens an endpoint in the side's domain, enables it and makes it the side's endpoint.
func (s *side) endpoint(info *Info) {
	s.t.Helper()
	var err error
	s.ep, err = s.domain.OpenEndpoint(info)
	require.NoError(s.t, err)
	ep := s.ep
	s.t.Cleanup(func() { require.NoError(s.t, ep.Close()) })
	require.NoError(s.t, s.ep.BindEQ(s.eq))
	require.NoError(s.t, s.ep.BindCQ(s.cq, FlagTransmit|FlagRecv))
	require.NoError(s.t, s.ep.Enable())
}

// dial opens a side whose endpoint can connect to addr.
func dial(t *testing.T, prov string, addr []byte) *side {
	t.Helper()
	s := &side{t: t, info: msgInfo(t, prov, 0, addr)}
	var err error
	s.fabric, err = OpenFabric(s.info)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.fabric.Close()) })
	s.eq, err = s.fabric.OpenEQ(EQAttr{Wait: WaitUnspec})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.eq.Close()) })
	s.open(s.info)
	return s
}

// next waits for the side's next event or error. Meanwhile it drives the progress of this side and
// of the sides in also.
func (s *side) next(also ...*side) (*EQEvent, *EQError) {
	s.t.Helper()
	for deadline := time.Now().Add(testTimeout); time.Now().Before(deadline); {
		for _, o := range append(also, s) {
			if o.cq != nil {
				_, _ = o.cq.Read(make([]CQEntry, 1)) // drives progress
			}
			_, _ = o.eq.Read(FlagPeek) // drives progress, too
		}
		ev, err := s.eq.SRead(time.Millisecond, 0)
		if errors.Is(err, ErrAvail) {
			failed, err := s.eq.ReadErr(0)
			require.NoError(s.t, err)
			return nil, failed
		}
		if !errors.Is(err, ErrAgain) {
			require.NoError(s.t, err)
			return ev, nil
		}
	}
	require.Fail(s.t, "waited too long for an event")
	return nil, nil
}

// must returns the side's next event, which must have the type typ and be about the object with the
// FID about. Meanwhile it drives progress as next does.
func (s *side) must(typ EventType, about FID, also ...*side) *EQEvent {
	s.t.Helper()
	ev, failed := s.next(also...)
	require.Nil(s.t, failed)
	require.Equal(s.t, typ, ev.Type)
	require.Equal(s.t, about, ev.FID)
	return ev
}

// connected returns two connected sides and the passive endpoint of the server.
func connected(t *testing.T, prov string) (server, client *side, p *PassiveEP) {
	t.Helper()
	server, p = listen(t, prov)
	addr, err := p.Name()
	require.NoError(t, err)
	client = dial(t, prov, addr)
	require.NoError(t, client.ep.Connect(addr, []byte("please")))
	request := server.must(EventConnReq, p.FID(), client)
	require.Equal(t, "please", string(request.Private))
	require.True(t, request.Info.HasRequest())
	server.open(request.Info)
	require.NoError(t, server.ep.Accept([]byte("welcome")))
	require.Empty(t, server.must(EventConnected, server.ep.FID(), client).Private)
	require.Equal(t, "welcome", string(client.must(EventConnected, client.ep.FID(), server).Private))
	return server, client, p
}

// wait drives the progress of both sides until ctx, a context of s, is idle again.
func (s *side) wait(ctx *Context, other *side) error {
	s.t.Helper()
	var entries [4]CQEntry
	for deadline := time.Now().Add(testTimeout); ctx.InFlight(); {
		require.True(s.t, time.Now().Before(deadline), "waited too long for %v", ctx.User)
		if _, err := s.cq.Read(entries[:]); errors.Is(err, ErrAvail) {
			failed, err := s.cq.ReadErr()
			require.NoError(s.t, err)
			return failed
		}
		if _, err := other.cq.Read(entries[:]); err != nil {
			require.ErrorIs(s.t, err, ErrAgain)
		}
	}
	return nil
}

func TestConnection(t *testing.T) {
	for _, p := range cmProviders {
		t.Run(p.prov, func(t *testing.T) {
			server, client, pep := connected(t, p.prov)
			at, err := pep.Name()
			require.NoError(t, err)
			peer, err := client.ep.Peer()
			require.NoError(t, err)
			require.Equal(t, at, peer)
			peer, err = server.ep.Peer()
			require.NoError(t, err)
			name, err := client.ep.Name()
			require.NoError(t, err)
			require.Equal(t, name, peer)

			for i, pair := range [][2]*side{{client, server}, {server, client}} {
				from, to := pair[0], pair[1]
				for _, size := range []int{0, 1, 5000, 1 << 20} {
					out, in := pattern(make([]byte, size), i), make([]byte, size+10)
					send, recv := NewContext("send"), NewContext("recv")
					require.NoError(t, to.ep.Recv(in, Desc{}, 0, recv))
					require.NoError(t, from.ep.Send(out, Desc{}, 0, send))
					// wait drives the progress of both sides, so during from.wait the receive may
					// complete, too.
					for send.InFlight() || recv.InFlight() {
						require.NoError(t, from.wait(send, to))
						require.NoError(t, to.wait(recv, from))
					}
					require.Equal(t, out, in[:size])
				}
				mem, mine := make([]byte, 5000), pattern(make([]byte, 5000), 9)
				mr, err := to.domain.RegisterMemory(mem, AccessRemoteRead|AccessRemoteWrite, 0, 77, 0)
				require.NoError(t, err)
				ctx := NewContext("rma")
				require.NoError(t, from.ep.Write(mine, Desc{}, 0, 0, mr.Key(), ctx))
				require.NoError(t, from.wait(ctx, to))
				clear(mine)
				// The read must return what the write before it has written.
				require.NoError(t, from.ep.Read(mine, Desc{}, 0, 0, mr.Key(), ctx))
				require.NoError(t, from.wait(ctx, to))
				require.Equal(t, pattern(make([]byte, 5000), 9), mine)
				require.NoError(t, mr.Close())
			}

			require.NoError(t, client.ep.Shutdown())
			server.must(EventShutdown, server.ep.FID(), client)
			ctx := NewContext("late")
			err = server.ep.Send([]byte("late"), Desc{}, 0, ctx)
			if err == nil {
				err = server.wait(ctx, client)
			}
			require.Equal(t, p.unaware, err == nil, err)
		})
	}
}

// TestConnectionClosed checks that closing an endpoint ends the connection.
func TestConnectionClosed(t *testing.T) {
	for _, p := range cmProviders {
		t.Run(p.prov, func(t *testing.T) {
			server, client, _ := connected(t, p.prov)
			ctx := NewContext("recv")
			require.NoError(t, client.ep.Recv(make([]byte, 10), Desc{}, 0, ctx))
			require.NoError(t, server.ep.Close())
			client.must(EventShutdown, client.ep.FID())
			require.NoError(t, client.ep.Close())
			require.False(t, ctx.InFlight())
		})
	}
}

// TestReject sends connection requests with private data of several sizes, and rejects each with
// data of the same size. Both sides must get the other's data. The next request must then be
// accepted.
func TestReject(t *testing.T) {
	for _, p := range cmProviders {
		t.Run(p.prov, func(t *testing.T) {
			server, pep := listen(t, p.prov)
			addr, err := pep.Name()
			require.NoError(t, err)
			client := dial(t, p.prov, addr)
			limit, err := pep.CMDataSize()
			require.NoError(t, err)
			require.Equal(t, p.dataSize, limit)
			limit, err = client.ep.CMDataSize()
			require.NoError(t, err)
			require.Equal(t, p.dataSize, limit)
			question, answer := pattern(make([]byte, limit+1), 1), pattern(make([]byte, limit+1), 2)

			for _, n := range []int{0, 1, limit} {
				if n > 0 {
					client.endpoint(client.info) // an endpoint can connect only once
				}
				require.ErrorIs(t, client.ep.Connect(addr, question), ErrInvalid)
				require.NoError(t, client.ep.Connect(addr, question[:n]))
				request := server.must(EventConnReq, pep.FID(), client)
				require.Equal(t, string(question[:n]), string(request.Private))
				require.ErrorIs(t, pep.Reject(request.Info, answer), ErrInvalid)
				require.NoError(t, pep.Reject(request.Info, answer[:n]))
				require.ErrorIs(t, pep.Reject(request.Info, nil), ErrInvalid, "twice")
				ev, failed := client.next(server)
				require.Nil(t, ev)
				require.ErrorIs(t, failed, ErrConnRefused)
				require.Equal(t, client.ep.FID(), failed.FID)
				require.Equal(t, string(answer[:n]), string(failed.ErrData))
			}

			client.endpoint(client.info)
			require.NoError(t, client.ep.Connect(addr, question[:limit]))
			request := server.must(EventConnReq, pep.FID(), client)
			require.Equal(t, question[:limit], request.Private)
			server.open(request.Info)
			require.ErrorIs(t, server.ep.Accept(answer), ErrInvalid)
			require.NoError(t, server.ep.Accept(answer[:limit]))
			server.must(EventConnected, server.ep.FID(), client)
			require.Equal(t, answer[:limit], client.must(EventConnected, client.ep.FID(), server).Private)
		})
	}
}

func TestConnectToNobody(t *testing.T) {
	for _, p := range cmProviders {
		t.Run(p.prov, func(t *testing.T) {
			_, pep := listen(t, p.prov)
			addr, err := pep.Name()
			require.NoError(t, err)
			require.NoError(t, pep.Close())
			client := dial(t, p.prov, addr)
			err = client.ep.Connect(addr, nil)
			if p.early {
				require.ErrorIs(t, err, ErrConnRefused)
				return
			}
			require.NoError(t, err)
			ev, failed := client.next()
			require.Nil(t, ev)
			require.ErrorIs(t, failed, ErrConnRefused)
			require.Equal(t, client.ep.FID(), failed.FID)
		})
	}
}

func TestMisuseOfCM(t *testing.T) {
	for _, p := range cmProviders {
		t.Run(p.prov, func(t *testing.T) {
			server, pep := listen(t, p.prov)
			require.ErrorIs(t, pep.BindEQ(server.eq), ErrInvalid)
			require.ErrorIs(t, pep.SetBacklog(3), ErrNotSupported)
			require.ErrorIs(t, pep.SetName(nil), ErrInvalid)
			require.ErrorIs(t, pep.Reject(server.info, nil), ErrInvalid, "no request")
			require.ErrorIs(t, server.eq.Close(), ErrBusy)
			deaf, err := server.fabric.OpenPassiveEP(server.info)
			require.NoError(t, err)
			require.ErrorIs(t, deaf.Listen(), ErrNoEQ)
			require.NoError(t, deaf.Close())
			require.ErrorIs(t, deaf.Listen(), ErrClosed)
			require.ErrorIs(t, deaf.BindEQ(server.eq), ErrClosed)
			_, err = deaf.Name()
			require.ErrorIs(t, err, ErrClosed)
			_, err = deaf.CMDataSize()
			require.ErrorIs(t, err, ErrClosed)

			addr, err := pep.Name()
			require.NoError(t, err)
			client := dial(t, p.prov, addr)
			require.ErrorIs(t, client.ep.Connect(nil, nil), ErrInvalid)
			require.ErrorIs(t, client.ep.Connect(addr[:3], nil), ErrInvalid)
			require.ErrorIs(t, client.ep.SetName(nil), ErrInvalid)
			require.Error(t, client.ep.Accept(nil), "no request")
			require.NoError(t, client.ep.Close())
			require.ErrorIs(t, client.ep.Connect(addr, nil), ErrClosed)
			require.ErrorIs(t, client.ep.Accept(nil), ErrClosed)
			require.ErrorIs(t, client.ep.Shutdown(), ErrClosed)
			_, err = client.ep.Peer()
			require.ErrorIs(t, err, ErrClosed)
			_, err = client.ep.Join(addr, 0)
			require.ErrorIs(t, err, ErrClosed)
		})
	}
	a, b := openPair(t, setup{prov: "tcp;ofi_rxm"})
	name, err := b.ep.Name()
	require.NoError(t, err)
	require.ErrorIs(t, a.ep.Connect(name, nil), ErrNotSupported)
	require.ErrorIs(t, a.ep.Shutdown(), ErrNotSupported)
	_, err = a.ep.Join(name, 0)
	require.ErrorIs(t, err, ErrNotSupported)
}
