package engine

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport/inproc"
)

// naiveMatcher matches messages and receives as the MPI standard describes it: by two lists that it
// searches from the front. The ids of receives and messages are at the same indices of postIDs and
// msgIDs.
type naiveMatcher struct {
	posted  []matchKey
	postIDs []int
	msgs    []matchKey
	msgIDs  []int
}

// accepts reports whether a receive with the key r accepts a message with the key m.
func accepts(r, m matchKey) bool {
	return r.context == m.context && (r.source == wild || r.source == m.source) && (r.tag == wild || r.tag == m.tag)
}

// post posts a receive with an id. It returns the id of the message that the receive matches; -1:
// none.
func (n *naiveMatcher) post(k matchKey, id int) (msg int) {
	for i, m := range n.msgs {
		if accepts(k, m) {
			msg = n.msgIDs[i]
			n.msgs = append(n.msgs[:i], n.msgs[i+1:]...)
			n.msgIDs = append(n.msgIDs[:i], n.msgIDs[i+1:]...)
			return msg
		}
	}
	n.posted, n.postIDs = append(n.posted, k), append(n.postIDs, id)
	return -1
}

// arrive handles a message with an id. It returns the id of the receive that the message matches;
// -1: none.
func (n *naiveMatcher) arrive(k matchKey, id int) (recv int) {
	for i, r := range n.posted {
		if accepts(r, k) {
			recv = n.postIDs[i]
			n.posted = append(n.posted[:i], n.posted[i+1:]...)
			n.postIDs = append(n.postIDs[:i], n.postIDs[i+1:]...)
			return recv
		}
	}
	n.msgs, n.msgIDs = append(n.msgs, k), append(n.msgIDs, id)
	return -1
}

// cancel withdraws the posted receive with an id, if there is one.
func (n *naiveMatcher) cancel(id int) {
	for i := range n.postIDs {
		if n.postIDs[i] == id {
			n.posted = append(n.posted[:i], n.posted[i+1:]...)
			n.postIDs = append(n.postIDs[:i], n.postIDs[i+1:]...)
			return
		}
	}
}

// matcher has the same methods as naiveMatcher, but uses the queues of the engine.
type matcher struct {
	posted postedQueue
	unexp  unexpectedQueue
	recvs  map[int]*request
}

func (m *matcher) post(k matchKey, id int) (msg int) {
	if u := m.unexp.find(k); u != nil {
		m.unexp.take(u)
		msg = u.header.Length
		m.unexp.put(u)
		return msg
	}
	r := &request{index: uint32(id)}
	r.node.req, r.node.key = r, k
	m.posted.post(r)
	m.recvs[id] = r
	return -1
}

func (m *matcher) arrive(k matchKey, id int) (recv int) {
	if r := m.posted.match(k); r != nil {
		delete(m.recvs, int(r.index))
		return int(r.index)
	}
	u := m.unexp.get()
	u.header, u.source = wire.Message{Context: k.context, Tag: k.tag, Length: id}, k.source
	m.unexp.add(u)
	return -1
}

func (m *matcher) cancel(id int) {
	if r := m.recvs[id]; r != nil {
		m.posted.withdraw(r)
		delete(m.recvs, id)
	}
}

// play makes the same calls on a naiveMatcher and on a matcher, and requires equal results. Each
// call is two bytes of the script: the first one selects the method. The second one gives the key
// or, for cancel, says how many calls before the receive was posted.
func play(t *testing.T, script []byte) {
	n := &naiveMatcher{}
	m := &matcher{recvs: map[int]*request{}}
	for id := 0; len(script) >= 2; id, script = id+1, script[2:] {
		what, where := script[0], script[1]
		k := matchKey{uint64(where >> 6), int32(where >> 3 & 7), int32(where & 7)}
		switch {
		case what < 100: // posts a receive, often with wildcards
			if what&1 != 0 {
				k.source = wild
			}
			if what&2 != 0 {
				k.tag = wild
			}
			require.Equal(t, n.post(k, id), m.post(k, id))
		case what < 220:
			require.Equal(t, n.arrive(k, id), m.arrive(k, id))
		default:
			n.cancel(id - int(where))
			m.cancel(id - int(where))
		}
		posted := m.posted.n
		for n := m.posted.head; n != nil; n = n.next {
			require.Zero(t, m.posted.n)
			posted++
		}
		require.Equal(t, len(n.posted), posted)
		asked := 1
		for _, a := range m.unexp.searched {
			if a {
				asked++
			}
		}
		require.Equal(t, asked*len(n.msgs), m.unexp.n)
	}
}

func TestMatchingAgainstNaive(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		script := make([]byte, 2000)
		for i := range script {
			script[i] = byte(rng.Uint32())
		}
		play(t, script)
	}
}

func FuzzMatching(f *testing.F) {
	f.Add([]byte{0, 0, 200, 0, 3, 9, 200, 9})
	f.Fuzz(func(t *testing.T, script []byte) { play(t, script[:min(len(script), 400)]) })
}

// TestTableShrinks: the queue has held many messages, and now holds one. Calls of the method each
// make the table smaller, and the method find still finds the message.
func TestTableShrinks(t *testing.T) {
	var q unexpectedQueue
	var all []*unexpected
	for i := range 50_000 {
		u := q.get()
		u.header.Tag = int32(i)
		q.add(u)
		all = append(all, u)
	}
	for _, u := range all[1:] {
		q.take(u)
	}
	for range 10 {
		n := 0
		q.each(func(*node) { n++ })
		require.Equal(t, 1, n)
	}
	require.LessOrEqual(t, len(q.buckets), 16*tableMin)
	require.Equal(t, all[0], q.find(matchKey{tag: wild, source: wild}))
}

// TestPostedEach: the method each calls its function for all posted receives: for those in the
// list, and for those in the table.
func TestPostedEach(t *testing.T) {
	var q postedQueue
	for i := range 7 {
		r := &request{}
		r.node.req, r.node.key = r, matchKey{tag: int32(i / 4)}
		q.post(r)
		n := 0
		q.each(func(*request) { n++ })
		require.Equal(t, i+1, n)
	}
	q.each(q.withdraw)
	q.each(func(*request) { t.Error("one is left") })
}

// TestBufferPoolIsBounded: more buffers are returned to the pool than it may keep. It keeps exactly
// bufferKept bytes of them, and no buffer that is longer than that.
func TestBufferPoolIsBounded(t *testing.T) {
	for _, size := range []int{1, 1000, 1 << 20, bufferKept} {
		var p bufferPool
		var all [][]byte
		for n := 0; n < 2*bufferKept; n += cap(all[0]) {
			all = append(all, p.get(size))
		}
		for _, b := range all {
			p.put(b)
		}
		require.Equal(t, bufferKept, p.bytes(), "%d bytes each", size)
		require.Equal(t, p.bytes(), p.kept)
		for range all {
			p.get(size)
		}
		require.Zero(t, p.kept)
	}
	var p bufferPool
	p.put(make([]byte, 2*bufferKept))
	require.Zero(t, p.bytes())
}

// bytes returns the bytes that the pool holds.
func (p *bufferPool) bytes() (n int) {
	for _, class := range p.free {
		for _, b := range class {
			n += cap(b)
		}
	}
	return n
}

// TestEntriesAfterABurst: rank 1 gets 50,000 unexpected messages and then receives them. After that
// its queue keeps unexpectedKept unused entries.
func TestEntriesAfterABurst(t *testing.T) {
	const burst = 50_000
	cs := world(openJob(t, 2, inproc.NewFabric(), nil))
	e := cs[1].e
	ranks(t, cs, func(c *Context, rank int) error {
		buf := make([]byte, 1000)
		if rank == 0 {
			sends := []Request{c.Isend(buf, Env{Peer: 1, Tag: burst})}
			for i := range burst {
				sends = append(sends, c.Isend(buf, Env{Peer: 1, Tag: i}))
			}
			for _, s := range sends {
				if _, err := s.Wait(background); err != nil {
					return err
				}
			}
			return nil
		}
		for i := burst; i >= 0; i-- {
			if _, err := c.Recv(background, buf, Env{Peer: 0, Tag: i}); err != nil {
				return err
			}
		}
		return nil
	})
	entries := 0
	for u := e.unexpected.free; u != nil; u = u.next {
		entries++
	}
	require.Equal(t, unexpectedKept, entries)
	require.NotZero(t, e.buffers.bytes())
}

// TestKeysSpread: keys that differ only in one or two of their parts are spread over at least half
// of the buckets, if there are as many keys as buckets.
func TestKeysSpread(t *testing.T) {
	for name, key := range map[string]func(i int) matchKey{
		"sources":              func(i int) matchKey { return matchKey{5, int32(i), 7} },
		"tags":                 func(i int) matchKey { return matchKey{5, 3, int32(i)} },
		"contexts":             func(i int) matchKey { return matchKey{uint64(2 * i), 3, 7} },
		"ids":                  func(i int) matchKey { return matchKey{uint64(i)<<32 | 4, 3, 7} },
		"every 64th source":    func(i int) matchKey { return matchKey{5, int32(64 * i), 7} },
		"every 1024th tag":     func(i int) matchKey { return matchKey{5, 3, int32(1024 * i)} },
		"sources and tags":     func(i int) matchKey { return matchKey{5, int32(i % 64), int32(i / 64)} },
		"sources and contexts": func(i int) matchKey { return matchKey{uint64(2 * (i / 64)), int32(i % 64), 7} },
	} {
		for buckets := tableMin; buckets <= 1<<16; buckets *= 2 {
			used := make(map[uint64]bool)
			for i := range buckets {
				used[key(i).hash()&uint64(buckets-1)] = true
			}
			// Random keys would use 0.63 of the buckets.
			require.GreaterOrEqual(t, len(used), buckets/2, "%s: %d buckets", name, buckets)
		}
	}
}
