//go:build libfabric

package fi

import (
	"bytes"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// window is memory of a node, and the region as which the memory is registered.
type window struct {
	mem  []byte
	mr   *MR
	base uint64 // the address by which peers access the first byte
	key  uint64
}

// nextKey is the last key that [node.window] has requested. That method increments it, so that each
// region of the process has a key of its own.
var nextKey atomic.Uint64

// window registers memory of a node and closes the region when the test ends. Behind the memory
// there are size more bytes that are not registered, which no operation may access.
func (n *node) window(size int, access Access) *window {
	n.t.Helper()
	w := &window{mem: make([]byte, size, 2*size)}
	var err error
	w.mr, err = n.domain.RegisterMemory(w.mem, access, 0, nextKey.Add(1), 0)
	require.NoError(n.t, err)
	n.t.Cleanup(func() { require.NoError(n.t, w.mr.Close()) })
	if n.info.Domain.MRMode&MREndpoint != 0 {
		require.NoError(n.t, w.mr.BindEndpoint(n.ep, 0))
		require.NoError(n.t, w.mr.Enable())
	}
	w.key = w.mr.Key()
	if n.info.Domain.MRMode&(MRVirtAddr|MRBasic) != 0 {
		w.base = uint64(w.mr.Base())
	}
	return w
}

// remote returns a window that peers may read and write.
func (n *node) remote(size int) *window {
	n.t.Helper()
	return n.window(size, AccessRemoteRead|AccessRemoteWrite)
}

// local returns a window for local buffers of the node's own operations.
func (n *node) local(size int) *window {
	n.t.Helper()
	return n.window(size, AccessRead|AccessWrite|AccessSend|AccessRecv)
}

// untouched reports whether the window and the bytes behind it are still zero.
func (w *window) untouched() bool {
	all := w.mem[:cap(w.mem)]
	return bytes.Count(all, []byte{0}) == len(all)
}

// arrives waits until mem, memory of the node's peer, equals want. With most providers a completion
// means only that the data was sent.
func (n *node) arrives(mem, want []byte) {
	n.t.Helper()
	n.until("data in the peer's memory", func() bool { return bytes.Equal(mem, want) })
}

// rmaPair opens a pair of nodes with CapRMA.
func rmaPair(t *testing.T, prov string) (a, b *node) {
	t.Helper()
	return openPair(t, setup{prov: prov, caps: CapMsg | CapRMA})
}
