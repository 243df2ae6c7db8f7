package engine

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/wire"
)

// naive is matching as the standard words it: two lists, searched from the
// front.
type naive struct {
	posted  []matchKey
	postIDs []int
	msgs    []matchKey
	msgIDs  []int
}

func accepts(r, m matchKey) bool {
	return r.context == m.context && (r.source == wild || r.source == m.source) && (r.tag == wild || r.tag == m.tag)
}

func (n *naive) post(k matchKey, id int) (msg int) {
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

func (n *naive) arrive(k matchKey, id int) (recv int) {
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

func (n *naive) cancel(id int) {
	for i := range n.postIDs {
		if n.postIDs[i] == id {
			n.posted = append(n.posted[:i], n.posted[i+1:]...)
			n.postIDs = append(n.postIDs[:i], n.postIDs[i+1:]...)
			return
		}
	}
}

// matcher drives the engine's queues by the same calls.
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

// play runs a script of calls on both and compares each answer. Two bytes are
// a call.
func play(t *testing.T, script []byte) {
	n := &naive{}
	m := &matcher{recvs: map[int]*request{}}
	for id := 0; len(script) >= 2; id, script = id+1, script[2:] {
		what, where := script[0], script[1]
		k := matchKey{uint64(where >> 6), int32(where >> 3 & 7), int32(where & 7)}
		switch {
		case what < 100: // a receive, often with wildcards
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
		for _, a := range m.unexp.asked {
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
