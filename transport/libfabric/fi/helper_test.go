//go:build libfabric

package fi

import (
	"errors"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// testTimeout bounds how long a test waits for an expected event.
const testTimeout = 10 * time.Second

// v2 says that the library is libfabric 2.x. xnet is the name of the provider with the protocol
// FI_PROTO_XNET, see TestXNet. Both are variables of the package, so they are set before the first
// call of fi_getinfo.
var (
	v2   = LibraryVersion().Major() >= 2
	xnet = in2("tcp", "net")
)

// in2 returns a with libfabric 2.x and b with 1.x.
func in2[T any](a, b T) T {
	if v2 {
		return a
	}
	return b
}

// setup describes the endpoints that a test opens. A zero field means the default in its comment.
type setup struct {
	prov  string      // provider name, as in FabricAttr.ProvName
	ep    EPType      // default: EPRDM
	caps  Caps        // default: CapMsg | CapTagged
	cq    CQAttr      // default: CQTagged and WaitNone
	bind  Flags       // flags of BindCQ; default: FlagTransmit | FlagRecv
	hints func(*Info) // changes the hints of GetInfo; nil: no changes
	open  func(*node) // binds more objects to the endpoint before it is enabled; nil: none
	sep   bool        // each endpoint of a pair has a domain of its own
}

// node is an endpoint with its completion queue and address vector.
type node struct {
	t      *testing.T
	info   *Info
	fabric *Fabric
	domain *Domain
	av     *AV
	cq     *CQ
	ep     *Endpoint
	peer   Addr // the address of other in av
	other  *node

	entries [8]CQEntry
	from    [8]Addr
	events  []event // operations that [node.poll] has read from the queue and [node.next] has not returned yet
}

// event is an operation that has ended: with success if err is nil.
type event struct {
	CQEntry
	from Addr
	err  *CQError
}

// localInfo returns the first Info that a provider offers for endpoints on this machine.
func localInfo(t *testing.T, s setup) *Info {
	t.Helper()
	hints := NewInfo()
	hints.Fabric.ProvName = s.prov
	hints.EP.Type = s.ep
	hints.Caps = s.caps
	hints.Mode = ModeContext | ModeContext2 | ModeAsyncIov | ModeRxCQData
	hints.Domain.MRMode = MRLocal | MRVirtAddr | MRAllocated | MRProvKey | MREndpoint
	if s.hints != nil {
		s.hints(hints)
	}
	host := "127.0.0.1"
	if s.prov == "shm" {
		host = ""
	}
	infos, err := GetInfo(HeaderVersion, host, "", FlagSource, hints)
	if host == "" {
		infos, err = GetInfo(HeaderVersion, "", "", 0, hints)
	}
	require.NoError(t, err, "%s must be able to do this", s.prov)
	return named(t, infos, s.prov)
}

// TestXNet checks that xnet is the name of the provider with the protocol FI_PROTO_XNET.
func TestXNet(t *testing.T) {
	info := localInfo(t, setup{prov: xnet, ep: EPRDM, caps: CapMsg})
	require.Equal(t, ProtoXNet, info.EP.Protocol)
}

// named returns the first of infos whose provider has exactly this name. The hints tcp also select
// tcp;ofi_rxm.
func named(t *testing.T, infos []*Info, prov string) *Info {
	t.Helper()
	at := slices.IndexFunc(infos, func(i *Info) bool { return i.Fabric.ProvName == prov })
	require.NotEqual(t, -1, at, "no info of %s", prov)
	return infos[at]
}

// openPair opens two endpoints of a provider, inserts the address of each into the vector of the
// other, and closes the endpoints when the test ends.
func openPair(t *testing.T, s setup) (a, b *node) {
	t.Helper()
	if s.ep == EPUnspec {
		s.ep = EPRDM
	}
	if s.caps == 0 {
		s.caps = CapMsg | CapTagged
	}
	if s.bind == 0 {
		s.bind = FlagTransmit | FlagRecv
	}
	info := localInfo(t, s)
	fabric, err := OpenFabric(info)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, fabric.Close()) })
	open := func() *Domain {
		domain, err := fabric.OpenDomain(info)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, domain.Close()) })
		return domain
	}
	domain := open()
	a = openNode(t, s, info, fabric, domain)
	if s.sep {
		domain = open()
	}
	b = openNode(t, s, info, fabric, domain)
	a.meet(b)
	b.meet(a)
	return a, b
}

// openNode opens an endpoint in a domain, with a queue and a vector of its own.
func openNode(t *testing.T, s setup, info *Info, fabric *Fabric, domain *Domain) *node {
	t.Helper()
	n := &node{t: t, info: info, fabric: fabric, domain: domain}
	var err error
	n.av, err = domain.OpenAV(AVAttr{Type: AVTable})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.av.Close()) })
	n.cq, err = domain.OpenCQ(s.cq)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.cq.Close()) })
	n.ep, err = domain.OpenEndpoint(info)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.ep.Close()) })
	require.NoError(t, n.ep.BindAV(n.av))
	require.NoError(t, n.ep.BindCQ(n.cq, s.bind))
	if s.open != nil {
		s.open(n)
	}
	require.NoError(t, n.ep.Enable())
	return n
}

// meet inserts the address of the other node into the node's address vector, and makes it the
// node's peer.
func (n *node) meet(other *node) {
	n.t.Helper()
	name, err := other.ep.Name()
	require.NoError(n.t, err)
	out := make([]Addr, 1)
	count, err := n.av.Insert([][]byte{name}, out, 0, 0)
	require.NoError(n.t, err)
	require.Equal(n.t, 1, count)
	n.peer, n.other = out[0], other
}

// progress reads the queues of the node and of its peer, which drives the progress of both.
func (n *node) progress() {
	n.t.Helper()
	n.poll()
	if n.other != nil {
		n.other.poll()
	}
}

func (n *node) poll() {
	n.t.Helper()
	count, err := n.cq.ReadFrom(n.entries[:], n.from[:])
	if errors.Is(err, ErrAvail) {
		var failed *CQError
		if failed, err = n.cq.ReadErr(); err == nil {
			n.events = append(n.events, event{CQEntry: failed.CQEntry, err: failed})
		}
	}
	if !errors.Is(err, ErrAgain) {
		require.NoError(n.t, err)
	}
	for i, e := range n.entries[:count] {
		n.events = append(n.events, event{CQEntry: e, from: n.from[i]})
	}
}

// post calls a posting function until its result is not ErrAgain. That result must be nil.
func (n *node) post(call func() error) {
	n.t.Helper()
	n.until("posted", func() bool {
		err := call()
		if errors.Is(err, ErrAgain) {
			return false
		}
		require.NoError(n.t, err)
		return true
	})
}

// until drives the progress of both nodes until done returns true, at most for testTimeout.
func (n *node) until(what string, done func() bool) {
	n.t.Helper()
	for deadline := time.Now().Add(testTimeout); !done(); n.progress() {
		require.True(n.t, time.Now().Before(deadline), "waited too long for: %s", what)
	}
}

// next waits for the next operation of the node that ends, with success or failure.
func (n *node) next() event {
	n.t.Helper()
	n.until("a completion", func() bool { return len(n.events) > 0 })
	e := n.events[0]
	n.events = n.events[1:]
	return e
}

// wait waits for the end of the operation of ctx. The operation must succeed.
func (n *node) wait(ctx *Context) event {
	n.t.Helper()
	e := n.ended(ctx)
	require.NoError(n.t, n.fail(e))
	return e
}

// fail returns the error of an event, nil for a success.
func (n *node) fail(e event) error {
	if e.err == nil {
		return nil
	}
	return e.err
}

// ended waits for the end of the operation of ctx.
func (n *node) ended(ctx *Context) (found event) {
	n.t.Helper()
	n.until("the completion of an operation", func() bool {
		for i, e := range n.events {
			if e.Context == ctx {
				found = e
				n.events = append(n.events[:i], n.events[i+1:]...)
				return true
			}
		}
		return false
	})
	return found
}

// quiet drives progress 200 times. The test fails if the node has a completion meanwhile.
func (n *node) quiet() {
	n.t.Helper()
	for range 200 {
		n.progress()
		require.Empty(n.t, n.events)
	}
}

// pattern fills buf with bytes that depend on seed, and returns it.
func pattern(buf []byte, seed int) []byte {
	for i := range buf {
		buf[i] = byte(i*7 + seed*13 + 1)
	}
	return buf
}

// pointerTo returns a pointer to memory outside of Go's heap.
func pointerTo(address uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&address)) }
