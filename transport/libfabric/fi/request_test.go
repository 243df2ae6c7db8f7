//go:build libfabric

package fi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// requested returns two sides, the server's passive endpoint, and the client's connection request,
// which is not answered yet.
func requested(t *testing.T, prov string) (server, client *side, pep *PassiveEP, request *Info) {
	t.Helper()
	server, pep = listen(t, prov)
	addr, err := pep.Name()
	require.NoError(t, err)
	client = dial(t, prov, addr)
	require.NoError(t, client.ep.Connect(addr, nil))
	return server, client, pep, server.must(EventConnReq, pep.FID(), client).Info
}

// TestRequestIsAnsweredOnce checks that a request can be answered only once, with any copy of its
// Info, because all copies have the same handle, which the provider frees with the answer.
func TestRequestIsAnsweredOnce(t *testing.T) {
	for _, p := range cmProviders {
		t.Run(p.prov, func(t *testing.T) {
			server, client, pep, request := requested(t, p.prov)
			dup := request.Dup()
			require.True(t, dup.HasRequest())
			server.open(request)
			_, err := server.domain.OpenEndpoint(dup)
			require.ErrorIs(t, err, ErrBusy)
			require.ErrorIs(t, pep.Reject(dup, nil), ErrBusy)
			require.NoError(t, server.ep.Accept(nil))
			server.must(EventConnected, server.ep.FID(), client)
			require.False(t, dup.HasRequest())
			require.ErrorIs(t, server.ep.Accept(nil), ErrInvalid)
			require.ErrorIs(t, pep.Reject(request, nil), ErrInvalid)
			_, err = server.domain.OpenEndpoint(dup)
			require.ErrorIs(t, err, ErrInvalid)
		})
	}
}

// TestRequestEndsWithItsEndpoint checks that closing an endpoint ends the connection request that
// it was opened with.
func TestRequestEndsWithItsEndpoint(t *testing.T) {
	for _, p := range cmProviders {
		t.Run(p.prov, func(t *testing.T) {
			server, _, pep, request := requested(t, p.prov)
			server.open(request)
			require.NoError(t, server.ep.Close())
			require.False(t, request.HasRequest())
			require.ErrorIs(t, pep.Reject(request, nil), ErrInvalid)
			_, err := server.domain.OpenEndpoint(request)
			require.ErrorIs(t, err, ErrInvalid)
		})
	}
}

// TestConnectEnables checks that Connect and Accept enable their endpoints, so that completion
// queues can get the provider's texts for errors.
func TestConnectEnables(t *testing.T) {
	for _, p := range cmProviders {
		t.Run(p.prov, func(t *testing.T) {
			server, pep := listen(t, p.prov)
			addr, err := pep.Name()
			require.NoError(t, err)
			client := dial(t, p.prov, addr)
			bare := func(s *side, info *Info) *CQ {
				var err error
				s.cq, err = s.domain.OpenCQ(CQAttr{})
				require.NoError(t, err)
				cq := s.cq
				t.Cleanup(func() { require.NoError(t, cq.Close()) })
				s.ep, err = s.domain.OpenEndpoint(info)
				require.NoError(t, err)
				ep := s.ep
				t.Cleanup(func() { require.NoError(t, ep.Close()) })
				require.NoError(t, s.ep.BindCQ(s.cq, FlagTransmit|FlagRecv))
				require.ErrorIs(t, s.ep.Connect(addr, nil), ErrNoEQ)
				require.ErrorIs(t, s.ep.Accept(nil), ErrNoEQ)
				require.NoError(t, s.ep.BindEQ(s.eq))
				return cq
			}
			mine := bare(client, client.info)
			require.False(t, mine.hasText())
			require.NoError(t, client.ep.Connect(addr, nil))
			require.True(t, mine.hasText())

			request := server.must(EventConnReq, pep.FID(), client).Info
			server.domain, err = server.fabric.OpenDomain(request)
			require.NoError(t, err)
			domain := server.domain
			t.Cleanup(func() { require.NoError(t, domain.Close()) })
			its := bare(server, request)
			require.False(t, its.hasText())
			require.NoError(t, server.ep.Accept(nil))
			require.True(t, its.hasText())
			client.must(EventConnected, client.ep.FID(), server)
		})
	}
}
