package engine

import (
	"cmp"
	"slices"

	"github.com/weft-hpc/weft/internal/wire"
)

// Matching follows MPI's rules (MPI 4.1, 3.5): a message matches the earliest
// posted receive that accepts it, a receive the earliest message that it
// accepts, and messages of one pair of ranks in one context do not overtake
// each other.
//
// Both sides are hash tables over (context, source, tag) in which a wildcard
// is a value like any other. A posted receive stands in the table once, under
// its own key; an arriving message looks under the four keys that could accept
// it and takes the one that was posted first. An unexpected message stands in
// the table up to four times, so that a receive of any class finds its earliest
// message in one look; of the classes with wildcards only under those that have
// ever been asked for.
//
//	             source tag      posted: 1 entry      unexpected: 1 to 4 entries
//	exact          s     t       (c, s, t)            (c, s, t)
//	any source     *     t       (c, *, t)            (c, *, t)
//	any tag        s     *       (c, s, *)            (c, s, *)
//	any            *     *       (c, *, *)            (c, *, *)

// wild is the source or tag of a key that accepts all of them.
const wild = -1

// classes of keys, as bits: 1 any source, 2 any tag.
const classes = 4

type matchKey struct {
	context uint64
	source  int32 // world rank
	tag     int32
}

func (k matchKey) class() int {
	c := 0
	if k.source == wild {
		c |= 1
	}
	if k.tag == wild {
		c |= 2
	}
	return c
}

// of returns the key of class c that accepts a message with the exact key k.
func (k matchKey) of(c int) matchKey {
	if c&1 != 0 {
		k.source = wild
	}
	if c&2 != 0 {
		k.tag = wild
	}
	return k
}

// accepts says whether a receive with the key k takes a message with the exact
// key m.
func (k *matchKey) accepts(m matchKey) bool {
	return k.context == m.context && (k.source == m.source || k.source == wild) && (k.tag == m.tag || k.tag == wild)
}

func (k matchKey) hash() uint64 {
	const odd = 0x9e3779b97f4a7c15 // 2^64 over the golden ratio
	h := k.context*odd ^ (uint64(uint32(k.source))<<32 | uint64(uint32(k.tag)))
	h *= odd
	return h ^ h>>29
}

// node is an entry of a table. It lies within what it stands for.
type node struct {
	key        matchKey
	seq        uint64
	next, prev *node
	home       *bucket     // it is in; nil: it is in no table
	req        *request    // a posted receive, or
	msg        *unexpected // a message
}

// table is a hash table of nodes in which those of one key keep their order.
// Most keys are the same as the one before, so where that led is kept.
type table struct {
	buckets []bucket
	n       int
	lastKey matchKey
	last    *bucket // of lastKey; nil: none
}

type bucket struct{ head, tail *node }

// bucket returns where nodes of a key are. There are buckets.
func (t *table) bucket(k *matchKey) *bucket {
	if t.last == nil || t.lastKey != *k {
		t.lastKey = *k
		t.last = &t.buckets[k.hash()&uint64(len(t.buckets)-1)]
	}
	return t.last
}

const tableMin = 64

func (t *table) push(n *node) {
	if t.n >= 2*len(t.buckets) {
		t.grow()
	}
	t.n++
	t.link(n)
}

func (t *table) link(n *node) {
	b := t.bucket(&n.key)
	n.home, n.next, n.prev = b, nil, b.tail
	if b.tail == nil {
		b.head = n
	} else {
		b.tail.next = n
	}
	b.tail = n
}

func (t *table) grow() {
	old := t.buckets
	t.buckets = make([]bucket, max(tableMin, 2*len(old)))
	t.last = nil
	for _, b := range old {
		for n := b.head; n != nil; {
			next := n.next
			t.link(n)
			n = next
		}
	}
}

func (t *table) remove(n *node) {
	b := n.home
	if n.prev == nil {
		b.head = n.next
	} else {
		n.prev.next = n.next
	}
	if n.next == nil {
		b.tail = n.prev
	} else {
		n.next.prev = n.prev
	}
	n.home, n.next, n.prev = nil, nil, nil
	t.n--
}

// first returns the earliest node with exactly this key.
func (t *table) first(k matchKey) *node {
	if t.n == 0 {
		return nil
	}
	for n := t.bucket(&k).head; n != nil; n = n.next {
		if n.key == k {
			return n
		}
	}
	return nil
}

// each calls f for every node; f may remove the node it is given.
func (t *table) each(f func(*node)) {
	for i := range t.buckets {
		for n := t.buckets[i].head; n != nil; {
			next := n.next
			f(n)
			n = next
		}
	}
}

// postedQueue holds the receives that wait for a message. As long as all have
// one key, as a blocking receive and a window of nonblocking ones have, they are
// a list, and the table is empty; when one with another key comes, they move there.
type postedQueue struct {
	table
	head, tail *node        // of the list
	byClass    [classes]int // how many of each in the table, so that unused wildcards cost nothing
	wilds      int          // how many with wildcards in the table
	seq        uint64       // of the last that went into the table
}

func (q *postedQueue) post(r *request) {
	n := &r.node
	if q.n == 0 && (q.head == nil || q.head.key == n.key) {
		n.prev = q.tail
		if q.tail == nil {
			q.head = n
		} else {
			q.tail.next = n
		}
		q.tail = n
		return
	}
	for m := q.head; m != nil; {
		next := m.next
		q.enter(m)
		m = next
	}
	q.head, q.tail = nil, nil
	q.enter(n)
}

// enter puts a receive into the table.
func (q *postedQueue) enter(n *node) {
	q.seq++
	n.seq = q.seq
	q.byClass[n.key.class()]++
	if n.key.class() != 0 {
		q.wilds++
	}
	q.push(n)
}

func (q *postedQueue) withdraw(r *request) {
	n := &r.node
	if n.home == nil { // in the list
		q.unlist(n)
		return
	}
	q.byClass[n.key.class()]--
	if n.key.class() != 0 {
		q.wilds--
	}
	q.remove(n)
}

func (q *postedQueue) unlist(n *node) {
	if n.prev == nil {
		q.head = n.next
	} else {
		n.prev.next = n.next
	}
	if n.next == nil {
		q.tail = n.prev
	} else {
		n.next.prev = n.prev
	}
	n.next, n.prev = nil, nil
}

// match takes out the receive that a message with key k belongs to, or nil.
//
// Hot path: no allocation, no system call.
func (q *postedQueue) match(k matchKey) *request {
	if n := q.head; n != nil {
		if !n.key.accepts(k) {
			return nil
		}
		q.unlist(n)
		return n.req
	}
	if q.n == 0 {
		return nil
	}
	if q.wilds == 0 {
		n := q.first(k)
		if n == nil {
			return nil
		}
		q.byClass[0]--
		q.remove(n)
		return n.req
	}
	var best *node
	for c := range classes {
		if q.byClass[c] == 0 {
			continue
		}
		if n := q.first(k.of(c)); n != nil && (best == nil || n.seq < best.seq) {
			best = n
		}
	}
	if best == nil {
		return nil
	}
	q.withdraw(best.req)
	return best.req
}

// unexpected is a message that no receive was posted for.
type unexpected struct {
	nodes  [classes]node
	header wire.Message
	source int32
	data   []byte  // of an eager message, in a buffer of the engine's
	self   Request // the send of a message to ourselves that still lies there
	cost   int     // credit that it holds
	gen    uint32  // of the slot; a Message with another is stale
	next   *unexpected
}

// unexpectedQueue holds the messages that wait for a receive. All of them have
// nodes in the table for the exact class and for those that are asked for.
type unexpectedQueue struct {
	table
	asked [classes]bool // a receive or probe of this class has looked
	seq   uint64        // of the last that came
	free  *unexpected
}

// get returns an unused entry.
func (q *unexpectedQueue) get() *unexpected {
	u := q.free
	if u == nil {
		u = &unexpected{}
		for c := range classes {
			u.nodes[c].msg = u
		}
		return u
	}
	q.free = u.next
	u.next = nil
	return u
}

func (q *unexpectedQueue) put(u *unexpected) {
	u.gen++
	u.data, u.self = nil, Request{}
	u.next = q.free
	q.free = u
}

func (q *unexpectedQueue) add(u *unexpected) {
	q.seq++
	u.nodes[0].seq = q.seq
	exact := matchKey{u.header.Context, u.source, u.header.Tag}
	for c := range classes {
		if c == 0 || q.asked[c] {
			u.nodes[c].key = exact.of(c)
			q.push(&u.nodes[c])
		}
	}
}

// ask enters the messages that are there under a class that is asked for for the
// first time, in the order in which they came.
func (q *unexpectedQueue) ask(class int) {
	q.asked[class] = true
	var there []*unexpected
	q.each(func(n *node) {
		if n.key.class() == 0 {
			there = append(there, n.msg)
		}
	})
	slices.SortFunc(there, func(a, b *unexpected) int { return cmp.Compare(a.nodes[0].seq, b.nodes[0].seq) })
	for _, u := range there {
		u.nodes[class].key = u.nodes[0].key.of(class)
		q.push(&u.nodes[class])
	}
}

func (q *unexpectedQueue) take(u *unexpected) {
	for c := range classes {
		if c == 0 || q.asked[c] {
			q.remove(&u.nodes[c])
		}
	}
}

// find returns the earliest message that a receive with key k accepts, or nil.
func (q *unexpectedQueue) find(k matchKey) *unexpected {
	if c := k.class(); c != 0 && !q.asked[c] {
		q.ask(c)
	}
	if n := q.first(k); n != nil {
		return n.msg
	}
	return nil
}
