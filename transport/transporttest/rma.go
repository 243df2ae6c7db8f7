package transporttest

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"github.com/weft-hpc/weft/transport"
)

var rmaCases = []testCase{
	{name: "read", needs: transport.CapRead | capReach, run: testRead},
	{name: "write", needs: transport.CapWrite | capReach, run: testWrite},
	{name: "64 reads at once", needs: transport.CapRead | capReach, run: testReads64},
	{name: "64 writes at once", needs: transport.CapWrite | capReach, run: testWrites64},
	{name: "reads among messages", needs: transport.CapRead | capReach, run: testReadsAndMessages},
	{name: "refused reads", needs: transport.CapRead | capReach, run: func(w *world) { testRefused(w, transport.RemoteRead) }},
	{name: "refused writes", needs: transport.CapWrite | capReach, run: func(w *world) { testRefused(w, transport.RemoteWrite) }},
	{name: "region closed under reads", needs: transport.CapRead | capReach, run: testCloseUnderReads},
	{name: "region closed under writes", needs: transport.CapWrite | capReach, run: testCloseUnderWrites},
	{name: "memory of devices", needs: transport.CapDevice, minRanks: 2, run: testDevices},
	{name: "regions that RMA reaches", needs: transport.CapRead | transport.CapWrite, run: testReach},
}

// shared is a rank's buffer and its region. When share has returned, all ranks may read the struct.
type shared struct {
	buf []byte
	mr  transport.MemoryRegion
	key uint64 // of mr
	at  uint64 // the remote address of buf[0]
}

// share registers buf, a buffer of this rank, and stores it in all[r.id]. All ranks must call share
// with the same slice all. When share returns, all has the buffers of all ranks. The ranks must
// call unshare later to close the regions.
func (r *rank) share(all []shared, buf []byte, access transport.Access) error {
	mr, err := r.dom.RegisterMemory(buf, access)
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	all[r.id] = shared{buf: buf, mr: mr, key: mr.Key(), at: mr.Base()}
	return r.sync()
}

// unshare closes the region of r in all, when no rank uses it any more. All ranks must call
// unshare.
func (r *rank) unshare(all []shared) error {
	if err := r.sync(); err != nil {
		return err
	}
	if err := all[r.id].mr.Close(); err != nil {
		return fmt.Errorf("close the region: %w", err)
	}
	return r.sync()
}

// local registers the buffer of an operation and sets q.op.Region, if the domain requires that
// (MRLocal). The caller calls release when the operation is complete.
func (r *rank) local(q *request) (release func(), err error) {
	if r.attr.MRMode&transport.MRLocal == 0 || len(q.op.Data) == 0 {
		return func() {}, nil
	}
	mr, err := r.dom.RegisterMemory(q.op.Data, transport.Local)
	if err != nil {
		return nil, err
	}
	q.op.Region = mr
	return func() { _ = mr.Close() }, nil
}

// access does one RMA operation and waits until it is complete. post is r.read or r.write. data is
// the local buffer.
func (r *rank) access(post func(*request) error, p transport.Addr, key, addr uint64, data []byte) error {
	q := &request{}
	q.op = transport.Op{Peer: p, RemoteKey: key, RemoteAddr: addr, Data: data}
	release, err := r.local(q)
	if err != nil {
		return err
	}
	defer release()
	return r.finish(q, post)
}

// reaches returns whether RMA of this rank reaches a peer's region with a key.
func (r *rank) reaches(p transport.Addr, key uint64) bool {
	e, some := r.ep.(transport.RegionReacher)
	return r.rma != nil && (!some || e.ReachesRegion(p, key))
}

// testReach checks RegionReacher. Every rank tries to read and write a region of every rank. The
// region is that of ordinary memory or, in a second round, of Alloc. Where the rank reaches the
// region, both succeed; elsewhere both return ErrNotSupported and do not touch memory.
func testReach(w *world) {
	const each = 8
	n := len(w.ranks)
	all := make([]shared, n)
	reached := make([][]bool, n) // by the rank that reads and writes, then by the owner
	w.each(func(r *rank) error {
		for _, allocated := range []bool{false, true} {
			if allocated && !r.attr.Caps.Has(transport.CapSharedMemory) {
				return nil
			}
			var err error
			if allocated {
				err = r.allocate(all, n*each)
			} else {
				err = r.share(all, make([]byte, n*each), transport.RemoteRead|transport.RemoteWrite)
			}
			if err != nil {
				return err
			}
			reached[r.id] = make([]bool, n)
			own := uint64(each * int(r.id))
			err = r.peers(func(p transport.Addr) error {
				reaches := r.reaches(p, all[p].key)
				if !reaches && (allocated || p == r.id) {
					return fmt.Errorf("does not reach the region of rank %d, which is of Alloc or its own", p)
				}
				reached[r.id][p] = reaches
				want := slices.Clone(pattern(r.id, uint64(p), each))
				got := make([]byte, each)
				for range 2 {
					err := errors.Join(
						r.access(r.write, p, all[p].key, all[p].at+own, want),
						r.access(r.read, p, all[p].key, all[p].at+own, got))
					switch {
					case reaches && err == nil:
						err = sameAs(got, want)
					case !reaches && errors.Is(err, transport.ErrNotSupported):
						err = sameAs(got, make([]byte, each))
					case err == nil:
						err = errors.New("access to a region out of reach succeeded")
					}
					if err != nil {
						return fmt.Errorf("region of rank %d, reached: %v: %w", p, reaches, err)
					}
					if r.reaches(p, all[p].key) != reaches {
						return fmt.Errorf("region of rank %d: ReachesRegion has changed its answer", p)
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
			if err := r.sync(); err != nil {
				return err
			}
			for i := range n {
				want := make([]byte, each)
				if reached[i][r.id] {
					want = pattern(transport.Addr(i), uint64(r.id), each)
				}
				if err := sameAs(all[r.id].buf[each*i:each*(i+1)], want); err != nil {
					return fmt.Errorf("bytes of rank %d: %w", i, err)
				}
			}
			if err := r.unshare(all); err != nil {
				return err
			}
		}
		return nil
	})
}

// rmaSizes returns the sizes in bytes of the reads and writes to test. In a job of more than four
// ranks it leaves out the largest ones.
func rmaSizes(a transport.Attr, ranks int) []int {
	limit := a.MaxRMASize
	if ranks > 4 {
		limit = min(limit, 100_000)
	}
	var l []int
	for _, n := range []int{0, 1, 3, 8, 255, 4096, 4097, 65_536, 1 << 20, 1<<20 + 3} {
		if n <= limit {
			l = append(l, n)
		}
	}
	return l
}

func testRead(w *world) {
	all := make([]shared, len(w.ranks))
	w.each(func(r *rank) error {
		buf := slices.Clone(pattern(r.id, 0, 1<<20+16))
		if err := r.share(all, buf, transport.RemoteRead); err != nil {
			return err
		}
		dst := make([]byte, len(buf))
		for i, n := range rmaSizes(r.attr, r.n) {
			off := (i * 5) % 13
			err := r.peers(func(p transport.Addr) error {
				clear(dst)
				if err := r.access(r.read, p, all[p].key, all[p].at+uint64(off), dst[:n]); err != nil {
					return fmt.Errorf("read of %d bytes from rank %d: %w", n, p, err)
				}
				if err := sameAs(dst[:n], all[p].buf[off:off+n]); err != nil {
					return fmt.Errorf("read of %d bytes from rank %d: %w", n, p, err)
				}
				return sameAs(dst[n:], zeros[:len(dst)-n])
			})
			if err != nil {
				return err
			}
		}
		return r.unshare(all)
	})
}

func testWrite(w *world) {
	room := 1<<20 + 64
	if len(w.ranks) > 4 {
		room = 100_000 + 64
	}
	all := make([]shared, len(w.ranks))
	w.each(func(r *rank) error {
		// Each rank writes to its own part of every rank's buffer.
		if err := r.share(all, make([]byte, room*r.n), transport.RemoteWrite); err != nil {
			return err
		}
		for i, n := range rmaSizes(r.attr, r.n) {
			off := (i * 5) % 13
			err := r.peers(func(p transport.Addr) error {
				src := slices.Clone(pattern(r.id, uint64(i), n))
				err := r.access(r.write, p, all[p].key, all[p].at+uint64(room*int(r.id)+off), src)
				copy(src, garbage) // to detect an endpoint that still uses src after the completion
				if err != nil {
					return fmt.Errorf("write of %d bytes to rank %d: %w", n, p, err)
				}
				return nil
			})
			if err != nil {
				return err
			}
			if err := r.sync(); err != nil {
				return err
			}
			for p := range r.n {
				part := all[r.id].buf[p*room : (p+1)*room]
				if err := sameAs(part[off:off+n], pattern(transport.Addr(p), uint64(i), n)); err != nil {
					return fmt.Errorf("bytes that rank %d wrote: %w", p, err)
				}
				clear(part[off : off+n])
				if err := sameAs(part, zeros[:room]); err != nil {
					return fmt.Errorf("bytes beside those that rank %d wrote: %w", p, err)
				}
			}
			if err := r.sync(); err != nil {
				return err
			}
		}
		return r.unshare(all)
	})
}

const many = 64

// manySize returns the size in bytes of the i-th of many operations. The buffer of an operation
// begins where the buffer of the operation before ends.
func manySize(i int) int { return 1 + i*37 + (i%4)*5000 }

func manyTotal() int {
	total := 0
	for i := range many {
		total += manySize(i)
	}
	return total
}

// postMany posts operations, whose number is the constant many, to all ranks in turn, and waits for
// all of them. post is r.read or r.write. buf holds their local buffers, one after the other. For
// an offset in buf, at returns the offset in the target's buffer.
func (r *rank) postMany(post func(*request) error, all []shared, buf []byte, at func(off int) int) error {
	reqs := make([]request, many)
	off := 0
	for i := range reqs {
		p := transport.Addr((int(r.id) + i) % r.n)
		n := manySize(i)
		reqs[i].op = transport.Op{Peer: p, RemoteKey: all[p].key, RemoteAddr: all[p].at + uint64(at(off)), Data: buf[off : off+n]}
		release, err := r.local(&reqs[i])
		if err != nil {
			return err
		}
		defer release()
		if err := post(&reqs[i]); err != nil {
			return fmt.Errorf("operation %d: %w", i, err)
		}
		off += n
	}
	for i := range reqs {
		if err := r.wait(&reqs[i]); err != nil {
			return fmt.Errorf("operation %d: %w", i, err)
		}
	}
	return nil
}

func testReads64(w *world) {
	all := make([]shared, len(w.ranks))
	w.each(func(r *rank) error {
		total := manyTotal()
		if err := r.share(all, slices.Clone(pattern(r.id, 1, total)), transport.RemoteRead); err != nil {
			return err
		}
		dst := make([]byte, total)
		if err := r.postMany(r.read, all, dst, func(off int) int { return off }); err != nil {
			return err
		}
		off := 0
		for i := range many {
			p, n := (int(r.id)+i)%r.n, manySize(i)
			if err := sameAs(dst[off:off+n], all[p].buf[off:off+n]); err != nil {
				return fmt.Errorf("read %d: %w", i, err)
			}
			off += n
		}
		return r.unshare(all)
	})
}

func testWrites64(w *world) {
	all := make([]shared, len(w.ranks))
	w.each(func(r *rank) error {
		total := manyTotal()
		if err := r.share(all, make([]byte, total*r.n), transport.RemoteWrite); err != nil {
			return err
		}
		src := slices.Clone(pattern(r.id, 2, total))
		if err := r.postMany(r.write, all, src, func(off int) int { return int(r.id)*total + off }); err != nil {
			return err
		}
		if err := r.sync(); err != nil {
			return err
		}
		for p := range r.n {
			off := 0
			for i := range many {
				n := manySize(i)
				want := zeros[:n] // for another rank: rank p wrote nothing here
				if (p+i)%r.n == int(r.id) {
					want = pattern(transport.Addr(p), 2, total)[off : off+n]
				}
				if err := sameAs(all[r.id].buf[p*total+off:p*total+off+n], want); err != nil {
					return fmt.Errorf("write %d of rank %d: %w", i, p, err)
				}
				off += n
			}
		}
		return r.unshare(all)
	})
}

// testReadsAndMessages has all ranks read large blocks from each other while they exchange
// messages. Reads and messages must return the right bytes.
func testReadsAndMessages(w *world) {
	all := make([]shared, len(w.ranks))
	w.each(func(r *rank) error {
		size := min(300_001, r.attr.MaxRMASize)
		if err := r.share(all, slices.Clone(pattern(r.id, 5, size)), transport.RemoteRead); err != nil {
			return err
		}
		reqs := make([]request, 2*r.n)
		for i := range reqs {
			p := transport.Addr(i % r.n)
			reqs[i].op = transport.Op{Peer: p, RemoteKey: all[p].key, RemoteAddr: all[p].at, Data: make([]byte, size)}
			release, err := r.local(&reqs[i])
			if err != nil {
				return err
			}
			defer release()
		}
		// Post the first r.n reads before the messages, and the other r.n reads after them.
		tr := traffic{count: 200 / r.n, sizes: []int{0, 8, min(4096, r.attr.EagerLimit)}, headers: []int{16}, window: 8}
		tr.fit(r.attr)
		for i := range reqs {
			if err := r.read(&reqs[i]); err != nil {
				return err
			}
			if i == r.n-1 {
				if err := tr.run(r); err != nil {
					return err
				}
			}
		}
		for i := range reqs {
			if err := r.wait(&reqs[i]); err != nil {
				return err
			}
			if err := sameAs(reqs[i].op.Data, all[i%r.n].buf); err != nil {
				return fmt.Errorf("read %d: %w", i, err)
			}
		}
		return r.unshare(all)
	})
}

// testRefused tries reads (if want is RemoteRead) or writes (if want is RemoteWrite) that the
// target must refuse. Each must fail with the right error, and none may change memory of the
// target.
func testRefused(w *world, want transport.Access) {
	const size = 4096
	n := len(w.ranks)
	// The regions of all ranks: valid ones, ones with the other access, ones without remote
	// access, and closed ones.
	good, other, local, gone := make([]shared, n), make([]shared, n), make([]shared, n), make([]shared, n)
	w.each(func(r *rank) error {
		post := r.read
		if want == transport.RemoteWrite {
			post = r.write
		}
		fill := func() []byte { return slices.Clone(pattern(r.id, 9, size)) }
		for _, s := range []struct {
			all    []shared
			access transport.Access
		}{
			{good, want},
			{other, (transport.RemoteRead | transport.RemoteWrite) &^ want},
			{local, transport.Local},
			{gone, want},
		} {
			if err := r.share(s.all, fill(), s.access); err != nil {
				return err
			}
		}
		if err := gone[r.id].mr.Close(); err != nil {
			return err
		}
		if err := r.sync(); err != nil {
			return err
		}
		err := r.peers(func(p transport.Addr) error {
			key, at := good[p].key, good[p].at
			for _, c := range []struct {
				what      string
				key, addr uint64
				n         int
				err       error
			}{
				{"a key of no region", key ^ 1<<40, at, 8, transport.ErrKey},
				{"another key of no region", key ^ 1, at, 8, transport.ErrKey},
				{"key 0", 0, at, 8, transport.ErrKey},
				{"the key of a closed region", gone[p].key, gone[p].at, 8, transport.ErrKey},
				{"a byte behind the end", key, at + size, 1, transport.ErrBounds},
				{"the last byte and one more", key, at + size - 1, 2, transport.ErrBounds},
				{"more than the region", key, at, size + 1, transport.ErrBounds},
				{"a byte before the start", key, at - 1, 1, transport.ErrBounds},
				{"an end that overflows", key, math.MaxUint64 - 3, 8, transport.ErrBounds},
				{"a region with the other access", other[p].key, other[p].at, 8, transport.ErrAccess},
				{"a region without remote access", local[p].key, local[p].at, 8, transport.ErrAccess},
			} {
				err := r.access(post, p, c.key, c.addr, slices.Clone(garbage[:c.n]))
				if !errors.Is(err, c.err) {
					return fmt.Errorf("%s at rank %d: got %w, want %w", c.what, p, orNone(err), c.err)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		if err := r.sync(); err != nil {
			return err
		}
		for _, all := range [][]shared{good, other, local, gone} {
			if err := sameAs(all[r.id].buf, fill()); err != nil {
				return fmt.Errorf("a refused operation touched memory: %w", err)
			}
		}
		if err := r.sync(); err != nil {
			return err
		}
		// After the refusals, valid operations succeed. Only rank 0 writes to rank 0.
		if r.id == 0 || want == transport.RemoteRead {
			if err := r.access(post, 0, good[0].key, good[0].at+size, nil); err != nil {
				return fmt.Errorf("zero bytes at the end of the region: %w", err)
			}
			if err := r.access(post, 0, good[0].key, good[0].at, make([]byte, size)); err != nil {
				return fmt.Errorf("after refusals: %w", err)
			}
		}
		if err := r.unshare(good); err != nil {
			return err
		}
		if err := other[r.id].mr.Close(); err != nil {
			return err
		}
		return local[r.id].mr.Close()
	})
}

var errNone = errors.New("no error")

func orNone(err error) error {
	if err == nil {
		return errNone
	}
	return err
}

// offer names a region of rank 0. Rank 0 passes it to the other ranks, which access the region
// until they get the next offer.
type offer struct{ key, at uint64 }

// underClose has rank 0 register and close a region many times, while all ranks call use to access
// the region. After each Close rank 0 overwrites the memory at once, so the race detector, or the
// function closed, detects an endpoint that still uses the memory. use must check that an access
// either succeeds as a whole or fails with ErrKey.
func underClose(w *world, access transport.Access, use func(r *rank, o offer) error, closed func(buf []byte) error) {
	const rounds = 25
	size := min(1<<20, w.attr.MaxRMASize)
	var current atomic.Pointer[offer]
	var over atomic.Bool
	w.each(func(r *rank) error {
		if r.id != 0 {
			for !over.Load() && !r.w.failed.Load() {
				o := current.Load()
				if o == nil {
					if _, err := r.poll(); err != nil {
						return err
					}
					continue
				}
				if err := use(r, *o); err != nil {
					return err
				}
			}
			return r.sync()
		}
		defer over.Store(true)
		buf := make([]byte, size)
		for i := range rounds {
			copy(buf, pattern(0, 3, size))
			mr, err := r.dom.RegisterMemory(buf, access)
			if err != nil {
				return err
			}
			o := offer{mr.Key(), mr.Base()}
			current.Store(&o)
			if r.n == 1 {
				if err := use(r, o); err != nil {
					return err
				}
			}
			for range i * 3 {
				if _, err := r.poll(); err != nil {
					return err
				}
			}
			if err := mr.Close(); err != nil {
				return err
			}
			copy(buf, garbage)
			if err := use(r, o); err != nil { // with the key of the closed region
				return err
			}
			if err := closed(buf); err != nil {
				return err
			}
		}
		over.Store(true)
		return r.sync()
	})
}

func testCloseUnderReads(w *world) {
	size := min(1<<20, w.attr.MaxRMASize)
	dst := make([][]byte, len(w.ranks))
	underClose(w, transport.RemoteRead, func(r *rank, o offer) error {
		if dst[r.id] == nil {
			dst[r.id] = make([]byte, size)
		}
		err := r.access(r.read, 0, o.key, o.at, dst[r.id])
		if err == nil {
			return sameAs(dst[r.id], pattern(0, 3, size))
		}
		if !errors.Is(err, transport.ErrKey) {
			return fmt.Errorf("read of a region that is being closed: %w", err)
		}
		return nil
	}, func([]byte) error { return nil })
}

func testCloseUnderWrites(w *world) {
	size := min(1<<20, w.attr.MaxRMASize)
	// Each rank writes to its own part of the region, so that no two ranks write the same bytes.
	part := size / len(w.ranks)
	src := slices.Repeat([]byte{0xAA}, part)
	underClose(w, transport.RemoteWrite, func(r *rank, o offer) error {
		err := r.access(r.write, 0, o.key, o.at+uint64(part*int(r.id)), src)
		if err != nil && !errors.Is(err, transport.ErrKey) {
			return fmt.Errorf("write to a region that is being closed: %w", err)
		}
		return nil
	}, func(buf []byte) error {
		if err := sameAs(buf, garbage[:size]); err != nil {
			return fmt.Errorf("bytes written after Close: %w", err)
		}
		return nil
	})
}
