package transporttest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

var messageCases = []testCase{
	{name: "one message each way", run: testOneMessage},
	{name: "sizes", run: testSizes},
	{name: "too large", run: testTooLarge},
	{name: "order", run: testOrder},
	{name: "flood", run: testFlood},
	{name: "buffer reuse", run: testReuse},
	{name: "validity of messages", run: testValidity},
}

// noise holds random bytes. The function pattern returns parts of it.
var noise = func() []byte {
	b := make([]byte, 5<<20)
	_, _ = rand.NewChaCha8([32]byte{'w', 'e', 'f', 't'}).Read(b) // Read never fails
	return b
}()

const noiseOffsets = 1 << 20

var (
	// garbage is what the suite writes to memory that the endpoint must no longer use.
	garbage = bytes.Repeat([]byte{0xEE}, 5<<20)
	zeros   = make([]byte, 5<<20)
)

// pattern returns n bytes, at most 4 MiB, as the content of a message or region. They depend on the
// rank from and the number seq, so that the receiver detects bytes of another rank or number. The
// caller must not change them.
func pattern(from transport.Addr, seq uint64, n int) []byte {
	off := (uint64(from)*7919 + seq*31) % noiseOffsets
	return noise[off : off+uint64(n)]
}

// sameAs returns nil if got equals want. Otherwise it returns an error that describes the first
// difference.
func sameAs(got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	if len(got) != len(want) {
		return fmt.Errorf("%d bytes instead of %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("byte %d of %d is %#x instead of %#x", i, len(got), got[i], want[i])
		}
	}
	return nil
}

// traffic describes messages from every rank to every rank, also to itself. The k-th message to a
// peer has the k-th of sizes and the k-th of headers; after the last entry of a list comes the
// first again.
type traffic struct {
	count   int   // number of messages from each rank to each rank
	sizes   []int // sizes of data in bytes
	headers []int // lengths of headers in bytes; the first 8 bytes hold the message's number and sender
	window  int   // largest number of unfinished sends of a rank
	// If burst is set, a rank reads its queue only after ErrAgain or if its window is full.
	// Otherwise it reads its queue after each send.
	burst bool
	hold  bool // a rank checks messages only after it has handled all completions of a Read
}

// run sends and receives the messages of rank r, and checks what r receives. All ranks call run.
func (tr *traffic) run(r *rank) error {
	type held struct {
		from transport.Addr
		seq  uint64
		msg  []byte
	}
	got := make([]uint64, r.n)
	total := 0
	var batch []held
	check := func(from transport.Addr, seq uint64, msg []byte) error {
		hl, size := tr.headers[seq%uint64(len(tr.headers))], tr.sizes[seq%uint64(len(tr.sizes))]
		if len(msg) != hl+size {
			return fmt.Errorf("message %d from rank %d has %d bytes instead of %d+%d", seq, from, len(msg), hl, size)
		}
		if err := sameAs(msg[:hl], header(from, seq)[:hl]); err != nil {
			return fmt.Errorf("header of message %d from rank %d: %w", seq, from, err)
		}
		if err := sameAs(msg[hl:], pattern(from, seq, size)); err != nil {
			return fmt.Errorf("message %d from rank %d: %w", seq, from, err)
		}
		return nil
	}
	r.onMsg = func(from transport.Addr, msg []byte) error {
		seq := got[from]
		got[from]++
		total++
		if seq >= uint64(tr.count) {
			return fmt.Errorf("more than %d messages from rank %d", tr.count, from)
		}
		if tr.hold {
			batch = append(batch, held{from, seq, msg})
			return nil
		}
		return check(from, seq, msg)
	}
	r.onBatch = func() error {
		for range 3 * len(batch) {
			runtime.Gosched() // the senders run meanwhile, and must not change these messages
		}
		for _, h := range batch {
			if err := check(h.from, h.seq, h.msg); err != nil {
				return err
			}
		}
		batch = batch[:0]
		return nil
	}
	defer func() { r.onMsg, r.onBatch = nil, nil }()
	if err := r.sync(); err != nil { // no rank sends before all ranks have set onMsg
		return err
	}

	room := slices.Max(tr.sizes)
	window := make([]*request, tr.window)
	bufs := make([][]byte, tr.window)
	for i := range window {
		window[i], bufs[i] = &request{}, make([]byte, room)
	}
	next := 0
	for seq := range uint64(tr.count) {
		err := r.peers(func(p transport.Addr) error {
			q, buf := window[next], bufs[next]
			next = (next + 1) % len(window)
			if err := r.wait(q); err != nil {
				return fmt.Errorf("send: %w", err)
			}
			hl, size := tr.headers[seq%uint64(len(tr.headers))], tr.sizes[seq%uint64(len(tr.sizes))]
			q.op = transport.Op{Peer: p, HeaderLen: hl, Data: buf[:size]}
			copy(q.op.Header[:hl], header(r.id, seq))
			copy(q.op.Data, pattern(r.id, seq, size))
			if err := r.send(q); err != nil {
				return fmt.Errorf("send message %d to rank %d: %w", seq, p, err)
			}
			if !q.busy {
				overwrite(q)
			}
			if tr.burst {
				return nil
			}
			_, err := r.poll()
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, q := range window {
		if err := r.wait(q); err != nil {
			return fmt.Errorf("send: %w", err)
		}
		overwrite(q)
	}
	if err := r.until("receive the rest", func() bool { return total == tr.count*r.n }); err != nil {
		return fmt.Errorf("%w; received %v of %d", err, got, tr.count)
	}
	return r.sync()
}

// header returns HeaderSize bytes. The message number seq from a sender begins with as many of them
// as its header is long.
func header(from transport.Addr, seq uint64) []byte {
	h := make([]byte, transport.HeaderSize)
	copy(h, pattern(from, seq+77, len(h)))
	binary.LittleEndian.PutUint64(h, seq<<8|uint64(from))
	return h
}

// overwrite overwrites a request and its data, to detect an endpoint that still uses them. The
// operation is complete, or its domain is closed.
func overwrite(q *request) {
	copy(q.op.Data, garbage)
	copy(q.op.Header[:], garbage)
	q.op.Peer, q.op.HeaderLen, q.op.Data, q.op.User = -1, -1, nil, nil
}

// traffic runs tr on all ranks. It first lowers the sizes that exceed Attr.MaxMsgSize.
func (w *world) traffic(tr traffic) {
	w.t.Helper()
	tr.fit(w.attr)
	w.each(tr.run)
}

func (tr *traffic) fit(a transport.Attr) {
	limit := a.MaxMsgSize - slices.Max(tr.headers)
	tr.sizes = slices.Clone(tr.sizes)
	for i, n := range tr.sizes {
		tr.sizes[i] = min(n, limit)
	}
}

func testOneMessage(w *world) {
	w.traffic(traffic{count: 1, sizes: []int{8}, headers: []int{16}, window: 1})
}

// messageSizes returns sizes of data in bytes, in random order, for messages with a header of hl
// bytes: sizes around powers of two and around the domain's limits. ranks is the number of ranks of
// the job. The more ranks, the smaller the largest size, because each rank sends to all.
func messageSizes(a transport.Attr, hl, ranks int) []int {
	limit := min(a.MaxMsgSize-hl, (4<<20)/ranks)
	var l []int
	for _, n := range []int{
		0, 1, 2, 3, 7, 8, 40, 63, 64, 65, 255, 256, 257, 1000, 4095, 4096, 4097,
		// Header and data of about 32 bytes or 8 KiB, the sizes up to which some providers copy
		// messages.
		32 - hl, 33 - hl, 8<<10 - hl, 8<<10 - hl + 1,
		a.EagerLimit - 1, a.EagerLimit, a.EagerLimit + 1,
		65536, 100_001, limit - 1, limit,
	} {
		if n >= 0 && n <= limit {
			l = append(l, n)
		}
	}
	slices.Sort(l)
	l = slices.Compact(l)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(l), func(i, j int) { l[i], l[j] = l[j], l[i] })
	return l
}

func testSizes(w *world) {
	for _, hl := range []int{0, 1, 24, transport.HeaderSize} {
		sizes := messageSizes(w.attr, hl, len(w.ranks))
		w.traffic(traffic{count: len(sizes), sizes: sizes, headers: []int{hl}, window: 4})
	}
}

func testTooLarge(w *world) {
	limit := w.attr.MaxMsgSize
	if limit > 256<<20 {
		w.t.Logf("skipped: MaxMsgSize is %d", limit)
		return
	}
	w.each(func(r *rank) error {
		for _, hl := range []int{0, 1, transport.HeaderSize} {
			q := &request{}
			q.op = transport.Op{Peer: transport.Addr((int(r.id) + 1) % r.n), HeaderLen: hl, Data: make([]byte, limit+1-hl)}
			if err := r.send(q); !errors.Is(err, transport.ErrTooLarge) {
				return fmt.Errorf("send of MaxMsgSize+1 bytes, %d of them header: got %w, want %w", hl, orNone(err), transport.ErrTooLarge)
			}
		}
		return r.sync()
	})
	w.traffic(traffic{count: 1, sizes: []int{8}, headers: []int{16}, window: 1})
}

func testOrder(w *world) {
	sizes := make([]int, 97)
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range sizes {
		sizes[i] = rng.IntN(1 << rng.IntN(15))
	}
	w.traffic(traffic{
		count: 10_000 / (len(w.ranks) * len(w.ranks)), sizes: sizes, headers: []int{8, 64, 24}, window: 16,
	})
}

func testFlood(w *world) {
	n := len(w.ranks)
	w.traffic(traffic{count: 20_000 / (n * n), sizes: []int{0, 8, 100}, headers: []int{16}, window: 256, burst: true})
	big := min(w.attr.EagerLimit, 64<<10)
	w.traffic(traffic{count: 2_000 / (n * n), sizes: []int{big, 0, big / 2}, headers: []int{24}, window: 64, burst: true})
	require.False(w.t, w.t.Failed())
}

func testReuse(w *world) {
	w.traffic(traffic{
		count: 200, sizes: messageSizes(w.attr, 16, 64), headers: []int{16}, window: 1, burst: true,
	})
}

func testValidity(w *world) {
	w.traffic(traffic{count: 2_000 / len(w.ranks), sizes: []int{8, 500, 4000, 0}, headers: []int{16}, window: 64, hold: true})
}
