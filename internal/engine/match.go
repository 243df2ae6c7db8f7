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
// Posted receives and unexpected messages are in two hash tables over (context, source, tag), in
// which a wildcard is a value like any other. A posted receive has one entry, under its own key.
// For an arriving message, match looks up the four keys that accept the message, and takes the
// receive that was posted first. An unexpected message has up to four entries, so a receive of
// any class finds its earliest message in one lookup. Entries with wildcards exist only for
// classes that a receive or probe has used.
//
//	             source tag      posted: 1 entry      unexpected: 1 to 4 entries
//	exact          s     t       (c, s, t)            (c, s, t)
//	any source     *     t       (c, *, t)            (c, *, t)
//	any tag        s     *       (c, s, *)            (c, s, *)
//	any            *     *       (c, *, *)            (c, *, *)

// wild is the source or tag of a key that accepts all sources or tags.
const wild = -1

// classes is the number of classes of keys. A class is a set of bits: 1 any source, 2 any tag.
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

// accepts reports whether a receive with key k accepts a message with the exact key m.
func (k *matchKey) accepts(m matchKey) bool {
	return k.context == m.context && (k.source == m.source || k.source == wild) && (k.tag == m.tag || k.tag == wild)
}

// hash combines both halves of a 128-bit product, in which each bit of the key changes many bits.
func (k matchKey) hash() uint64 {
	const oddA, oddB = 0x9e3779b97f4a7c15, 0xd1342543de82ef95 // odd constants without a pattern
	hi, lo := bits.Mul64(k.context^oddA, (uint64(uint32(k.source))<<32|uint64(uint32(k.tag)))^oddB)
	h := hi ^ lo
	return h ^ h>>32
}

// table is a hash table of nodes. The nodes of one key keep their order.
type table struct {
	buckets []list
	n       int
}

// bucket returns the bucket of a key. The table has buckets.
func (t *table) bucket(k *matchKey) *list {
	return &t.buckets[k.hash()&uint64(len(t.buckets)-1)]
}

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

// each calls f for every node; f may remove the node that it gets. If the table is much larger
// than its number of nodes, each first makes it smaller. So the cost of a call depends on the
// nodes that exist, and not on the largest number that ever existed.
func (t *table) each(f func(*node)) {
	const sparse = 16 // buckets per node
	if len(t.buckets) > sparse*tableMin && t.n < len(t.buckets)/sparse {
		t.resize(len(t.buckets) / sparse)
	}
	for i := range t.buckets {
		t.buckets[i].each(f)
	}
}

// postedQueue holds the receives that wait for a message. As long as all of them have one key, as
// a blocking receive or a window of nonblocking ones does, they are in list, and the table is
// empty. When a receive with another key is posted, all move to the table.
type postedQueue struct {
	table
	list
	byClass [classes]int // number of receives of each class in the table, so that unused wildcards cost nothing
	seq     uint64       // sequence number of the last receive that was added to the table
}

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

// addToTable adds a receive to the table.
func (q *postedQueue) addToTable(n *node) {
	q.seq++
	n.seq = q.seq
	q.byClass[n.key.class()]++
	q.table.push(n)
}

func (q *postedQueue) withdraw(r *request) {
	n := &r.node
	if n.list == &q.list {
		n.remove()
		return
	}
	q.byClass[n.key.class()]--
	q.remove(n)
}

// each calls f for every receive; f may withdraw the receive that it gets.
func (q *postedQueue) each(f func(*request)) {
	receive := func(n *node) { f(n.req) }
	q.list.each(receive)
	q.table.each(receive)
}

// match removes and returns the receive that a message with key k matches, or nil.
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

// unexpected is a message that has arrived and that no posted receive has matched.
type unexpected struct {
	nodes  [classes]node
	header wire.Message
	source int32
	gen    uint32      // generation of the entry; a Message with another generation is stale
	data   []byte      // data of an eager message, in a buffer of the engine
	self   Request     // the pending send of a message that this rank sent to itself
	held   *Unfinished // error of an earlier receive whose context has ended and whose transfer still uses the message
	cost   int         // credit that the message holds
	next   *unexpected
}

// key returns the exact key of the message.
func (u *unexpected) key() matchKey {
	return matchKey{u.header.Context, u.source, u.header.Tag}
}

// unexpectedQueue holds the messages that wait for a receive. Each has nodes in the table for the
// exact class and for the classes that searched marks.
type unexpectedQueue struct {
	table
	searched [classes]bool // by class: a receive or probe of the class has searched the queue
	seq      uint64        // arrival number of the last message
	free     *unexpected
	kept     int // number of entries in free; at most unexpectedKept
}

// unexpectedKept is the maximum number of unused entries that a queue keeps for later messages.
// The garbage collector frees the other entries of a burst.
const unexpectedKept = 1 << 12

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
	q.kept--
	u.next = nil
	return u
}

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

// next returns the arrival number of a message that arrives now.
func (q *unexpectedQueue) next() uint64 {
	q.seq++
	return q.seq
}

// restore adds a message that has been taken out of the queue. The message keeps its
// arrival number.
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

// addClass adds nodes of a class for all messages of the queue, in the order of arrival. It runs
// before the first receive or probe of the class searches.
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

func (q *unexpectedQueue) take(u *unexpected) {
	for c := range classes {
		if c == 0 || q.searched[c] {
			q.remove(&u.nodes[c])
		}
	}
}

// find returns the earliest message that a receive with key k accepts, or nil.
func (q *unexpectedQueue) find(k matchKey) *unexpected {
	if c := k.class(); c != 0 && !q.searched[c] {
		q.addClass(c)
	}
	if n := q.first(k); n != nil {
		return n.msg
	}
	return nil
}
