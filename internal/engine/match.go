package engine

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/weft-hpc/weft/internal/wire"
)

// Matching follows MPI's rules (MPI 4.1, 3.5): a message matches the earliest posted receive that
// accepts it, a receive matches the earliest message that it accepts, and messages of one pair of
// ranks in one context do not overtake each other.
//
// Posted receives and unexpected messages are in two hash tables. The key is (context, source,
// tag), and a wildcard is a value like any other. The class of a key says which of source and tag
// are wildcards, so there are four classes.
//
// A posted receive has one entry in its table, under its own key (see postedQueue for a shortcut).
// A message is accepted by four keys, one of each class. For an arriving message, match looks up
// these keys, and takes the receive that was posted first.
//
// An unexpected message has an entry under each key that accepts it, so a receive of any class
// finds the earliest message that it accepts in one lookup. To save time, entries of a class with
// wildcards exist only if a receive or probe of this class has searched the queue before.
//
//	             source tag      posted: 1 entry      unexpected: 1 to 4 entries
//	exact          s     t       (c, s, t)            (c, s, t)
//	any source     *     t       (c, *, t)            (c, *, t)
//	any tag        s     *       (c, s, *)            (c, s, *)
//	any            *     *       (c, *, *)            (c, *, *)

// wild is the source or tag of a matchKey with a wildcard: the key accepts all sources or all tags.
const wild = -1

// classes is the number of classes of keys. The class of a key is the sum of 1 if it accepts any
// source, and 2 if it accepts any tag. Class 0 is that of exact keys, which have no wildcard.
const classes = 4

// matchKey is what a message and a receive are matched by.
type matchKey struct {
	context uint64
	source  int32 // world rank of the sender, or wild
	tag     int32 // tag, or wild
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

// of returns the key of class c that accepts a message whose exact key is k.
func (k matchKey) of(c int) matchKey {
	if c&1 != 0 {
		k.source = wild
	}
	if c&2 != 0 {
		k.tag = wild
	}
	return k
}

// accepts reports whether a receive with the key k accepts a message with the exact key m.
func (k *matchKey) accepts(m matchKey) bool {
	return k.context == m.context && (k.source == m.source || k.source == wild) && (k.tag == m.tag || k.tag == wild)
}

// hash multiplies the two halves of the key, each after an XOR with a constant, and combines the
// two halves of the 128-bit product. Each bit of the key changes many bits of the hash.
func (k matchKey) hash() uint64 {
	const oddA, oddB = 0x9e3779b97f4a7c15, 0xd1342543de82ef95 // odd numbers whose bits follow no pattern
	hi, lo := bits.Mul64(k.context^oddA, (uint64(uint32(k.source))<<32|uint64(uint32(k.tag)))^oddB)
	h := hi ^ lo
	return h ^ h>>32
}

// table is a hash table of nodes. Its buckets are lists, which keep the nodes of one key in the
// order in which they were added.
type table struct {
	buckets []list // their number is 0 or a power of two
	n       int    // number of nodes in the table
}

// bucket returns the bucket of a key. The table has at least one bucket.
func (t *table) bucket(k *matchKey) *list {
	return &t.buckets[k.hash()&uint64(len(t.buckets)-1)]
}

// tableMin is the smallest number of buckets of a table that is not empty.
const tableMin = 64

func (t *table) push(n *node) {
	if t.n >= 2*len(t.buckets) {
		t.resize(max(tableMin, 2*len(t.buckets)))
	}
	t.n++
	t.bucket(&n.key).push(n)
}

func (t *table) resize(buckets int) {
	old := t.buckets
	t.buckets = make([]list, buckets)
	for _, b := range old {
		b.each(func(n *node) { t.bucket(&n.key).push(n) })
	}
}

func (t *table) remove(n *node) {
	t.n--
	n.remove()
}

// first returns the earliest node whose key equals k; nil: there is none.
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

// each calls f for every node, in no certain order. f may remove the node that it gets. If the
// table has far more buckets than nodes, each first makes the table smaller. So the cost of a call
// depends on the number of nodes now, and not on the largest number before.
func (t *table) each(f func(*node)) {
	const sparse = 16 // number of buckets per node from which each makes the table smaller
	if len(t.buckets) > sparse*tableMin && t.n < len(t.buckets)/sparse {
		t.resize(len(t.buckets) / sparse)
	}
	for i := range t.buckets {
		t.buckets[i].each(f)
	}
}

// postedQueue holds the posted receives: those that wait for a message. Receives go into the
// embedded list as long as all have the same key, and the table is empty. This is the case for a
// single blocking receive, and for several nonblocking receives from one source with one tag. When
// a receive with another key is posted, all receives move to the table, and later ones go there
// until the table is empty.
type postedQueue struct {
	table
	list
	// Number of receives of each class in the table; match does not look up a class without receives.
	byClass [classes]int
	seq     uint64 // number of receives that were added to the table so far
}

// post adds a receive.
func (q *postedQueue) post(r *request) {
	n := &r.node
	if q.n == 0 && (q.head == nil || q.head.key == n.key) {
		q.list.push(n)
		return
	}
	q.list.each(q.addToTable)
	q.list = list{}
	q.addToTable(n)
}

// addToTable adds a receive to the table; see postedQueue.
func (q *postedQueue) addToTable(n *node) {
	q.seq++
	n.seq = q.seq
	q.byClass[n.key.class()]++
	q.table.push(n)
}

// withdraw removes a receive that has not matched a message.
func (q *postedQueue) withdraw(r *request) {
	n := &r.node
	if n.list == &q.list {
		n.remove()
		return
	}
	q.byClass[n.key.class()]--
	q.remove(n)
}

// each calls f for every posted receive. f may withdraw the receive that it gets.
func (q *postedQueue) each(f func(*request)) {
	receive := func(n *node) { f(n.req) }
	q.list.each(receive)
	q.table.each(receive)
}

// match removes and returns the receive that a message with the exact key k matches; nil: there is
// none.
//
// Hot path: no allocation, no system call.
func (q *postedQueue) match(k matchKey) *request {
	if n := q.head; n != nil {
		if !n.key.accepts(k) {
			return nil
		}
		n.remove()
		return n.req
	}
	if q.n == q.byClass[0] { // no receive has a wildcard
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

// unexpected is a message that has arrived and that no posted receive has matched. It is an entry
// of the unexpectedQueue, or a call such as Mprobe has taken it out of the queue.
type unexpected struct {
	nodes  [classes]node // by class: node in the queue's table, under the key of this class
	header wire.Message  // header of the message
	source int32         // world rank of the sender
	// Number of messages that have used this entry before; a Message with another number identifies
	// one of those, which was received or dropped.
	gen  uint32
	data []byte  // data of an eager message, in a buffer of the engine; nil for an RTS, or if self is set
	self Request // for a message of this rank to itself whose data is still in the send's buffer: the send
	// A receive of the message was cut short. Its request still transfers the data, or has failed to do
	// so (Unfinished.lost); see cut.go. nil: the data is here, or no receive has begun.
	held *Unfinished
	cost int         // bytes of its sender's credit that the message uses
	next *unexpected // next entry in the list of unused ones
}

// key returns the exact key of the message: without wildcards.
func (u *unexpected) key() matchKey {
	return matchKey{u.header.Context, u.source, u.header.Tag}
}

// unexpectedQueue holds the messages that wait for a receive. Each message has a node in the table
// for class 0, and one for each class for which searched is true.
type unexpectedQueue struct {
	table
	searched [classes]bool // by class: a receive or probe of this class has searched the queue
	// Number of messages that have arrived so far; arrival numbers of messages count from 1.
	seq  uint64
	free *unexpected // list of unused entries
	kept int         // number of entries in free; at most unexpectedKept
}

// unexpectedKept is the maximum number of unused entries that a queue keeps for later messages.
// Entries beyond it, which a burst of messages needed, are left to the garbage collector.
const unexpectedKept = 1 << 12

// get returns an unused entry, which is in no table.
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
	q.kept--
	u.next = nil
	return u
}

// put keeps an entry for later use, unless the queue keeps enough of them. The entry is in no
// table. If a Message still identifies the entry, the Message is stale from then on: its Irecv
// fails, because the message was received or dropped.
func (q *unexpectedQueue) put(u *unexpected) {
	u.gen++
	u.data, u.self, u.held = nil, Request{}, nil
	if q.kept == unexpectedKept {
		return
	}
	q.kept++
	u.next = q.free
	q.free = u
}

// add puts a message that arrives now into the queue.
func (q *unexpectedQueue) add(u *unexpected) {
	u.nodes[0].seq = q.next()
	exact := u.key()
	for c := range classes {
		if c == 0 || q.searched[c] {
			u.nodes[c].key = exact.of(c)
			q.push(&u.nodes[c])
		}
	}
}

// next returns the arrival number of a message that arrives now. Arrival numbers say in which order
// the messages of this rank have arrived.
func (q *unexpectedQueue) next() uint64 {
	q.seq++
	return q.seq
}

// restore puts a message into the queue again that was taken out of it. The message keeps its
// arrival number, so it stands before the messages that have arrived after it.
func (q *unexpectedQueue) restore(u *unexpected) {
	exact := u.key()
	for c := range classes {
		if c != 0 && !q.searched[c] {
			continue
		}
		n := &u.nodes[c]
		n.key = exact.of(c)
		later := q.first(n.key)
		for later != nil && (later.key != n.key || later.msg.nodes[0].seq < u.nodes[0].seq) {
			later = later.next
		}
		if later == nil {
			q.push(n)
			continue
		}
		q.n++
		later.list.pushBefore(later, n)
	}
}

// addClass adds a node of the class for each message of the queue, in the order of arrival. It runs
// before the first receive or probe of the class searches the queue.
func (q *unexpectedQueue) addClass(class int) {
	q.searched[class] = true
	var all []*unexpected
	q.each(func(n *node) {
		if n.key.class() == 0 {
			all = append(all, n.msg)
		}
	})
	slices.SortFunc(all, func(a, b *unexpected) int { return cmp.Compare(a.nodes[0].seq, b.nodes[0].seq) })
	for _, u := range all {
		u.nodes[class].key = u.nodes[0].key.of(class)
		q.push(&u.nodes[class])
	}
}

// take removes a message from the queue.
func (q *unexpectedQueue) take(u *unexpected) {
	for c := range classes {
		if c == 0 || q.searched[c] {
			q.remove(&u.nodes[c])
		}
	}
}

// find returns the earliest message that a receive with the key k accepts; nil: there is none. It
// does not remove the message.
func (q *unexpectedQueue) find(k matchKey) *unexpected {
	if c := k.class(); c != 0 && !q.searched[c] {
		q.addClass(c)
	}
	if n := q.first(k); n != nil {
		return n.msg
	}
	return nil
}
