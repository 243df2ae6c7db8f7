package transporttest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/transport"
)

var sharedCases = []testCase{
	{name: "shared memory", needs: transport.CapSharedMemory, run: testSharedMemory},
	{name: "shared memory by RMA", needs: transport.CapSharedMemory | transport.CapRead | transport.CapWrite, run: testSharedRMA},
	{name: "wake-ups by words", needs: transport.CapSharedMemory, run: testSharedWords},
}

// allocate does what share does, but with n bytes of memory from SharedMemoryDomain.Alloc.
func (r *rank) allocate(all []shared, n int) error {
	mem, mr, err := r.dom.(transport.SharedMemoryDomain).Alloc(n)
	if err != nil {
		return fmt.Errorf("allocate %d bytes: %w", n, err)
	}
	all[r.id] = shared{buf: mem, mr: mr, key: mr.Key(), at: mr.Base()}
	return r.sync()
}

// testSharedMemory has the ranks allocate and free shared memory of several sizes. Each rank maps
// the memory of every rank and stores bytes there, which the owner must see. Memory must be zero
// when it is allocated, also if it was used before, and after it is freed its key must be invalid.
func testSharedMemory(w *world) {
	all, after := make([]shared, len(w.ranks)), make([]shared, len(w.ranks))
	sizes := []int{1, 8, 4096, 5000, 1 << 16, 3<<20 + 5}
	w.each(func(r *rank) error {
		dom := r.dom.(transport.SharedMemoryDomain)
		for _, n := range []int{0, -1} {
			if _, _, err := dom.Alloc(n); err == nil {
				return fmt.Errorf("an allocation of %d bytes succeeded", n)
			}
		}
		for _, n := range sizes {
			n = max(n, r.n)
			if err := r.allocate(all, n); err != nil {
				return err
			}
			if len(all[r.id].buf) != n || !bytes.Equal(all[r.id].buf, make([]byte, n)) {
				return fmt.Errorf("the allocated memory is not %d zero bytes", n)
			}
			if err := r.sync(); err != nil {
				return err
			}
			err := r.peers(func(p transport.Addr) error {
				mem, err := dom.Map(p, all[p].key)
				if err != nil {
					return err
				}
				again, err := dom.Map(p, all[p].key)
				if err != nil {
					return err
				}
				if len(mem) != n || len(again) != n {
					return fmt.Errorf("mapped %d and %d bytes, want %d", len(mem), len(again), n)
				}
				mem[r.id] = byte(r.id + 1)
				if n >= 2*r.n {
					mem[n-r.n+int(r.id)] = byte(r.id + 1)
				}
				return errors.Join(dom.Unmap(mem), dom.Unmap(again))
			})
			if err != nil {
				return err
			}
			if err := r.sync(); err != nil {
				return err
			}
			for i := range r.n {
				if b := all[r.id].buf; b[i] != byte(i+1) || n >= 2*r.n && b[n-r.n+i] != byte(i+1) {
					return fmt.Errorf("rank %d's bytes are %d and %d", i, b[i], b[n-r.n+i])
				}
			}
			if err := r.unshare(all); err != nil {
				return err
			}
			// all is freed now. Memory that is allocated again is zero, and the old key is invalid.
			if err := r.allocate(after, n); err != nil {
				return err
			}
			if !bytes.Equal(after[r.id].buf, make([]byte, n)) {
				return errors.New("memory that was freed and allocated again is not zero")
			}
			err = r.peers(func(p transport.Addr) error {
				if _, err := dom.Map(p, all[p].key); !errors.Is(err, transport.ErrKey) {
					return fmt.Errorf("map freed memory: got %w, want %w", orNone(err), transport.ErrKey)
				}
				return nil
			})
			if err != nil {
				return err
			}
			if err := r.unshare(after); err != nil {
				return err
			}
		}
		mr, err := r.dom.RegisterMemory(make([]byte, 8), transport.RemoteRead)
		if err != nil {
			return err
		}
		if _, err := dom.Map(r.id, mr.Key()); !errors.Is(err, transport.ErrKey) {
			return fmt.Errorf("map memory that is not from Alloc: got %w, want %w", orNone(err), transport.ErrKey)
		}
		for _, p := range []transport.Addr{-1, transport.Addr(r.n)} {
			if _, err := dom.Map(p, mr.Key()); err == nil {
				return fmt.Errorf("map memory of rank %d of %d: no error", p, r.n)
			}
		}
		return errors.Join(mr.Close(), r.sync())
	})
}

// testSharedRMA has each rank access shared memory both by RMA and by its mapping. A mapping must
// show what RMA has written, and RMA must read what was stored in a mapping.
func testSharedRMA(w *world) {
	all := make([]shared, len(w.ranks))
	const n, room = 300_000, 300_064
	w.each(func(r *rank) error {
		if err := r.allocate(all, room*r.n); err != nil {
			return err
		}
		err := r.peers(func(p transport.Addr) error {
			at := all[p].at + uint64(room*int(r.id))
			src := slices.Clone(pattern(r.id, uint64(p), n))
			if err := r.access(r.write, p, all[p].key, at+7, src); err != nil {
				return fmt.Errorf("write to rank %d: %w", p, err)
			}
			mem, err := r.dom.(transport.SharedMemoryDomain).Map(p, all[p].key)
			if err != nil {
				return err
			}
			if err := sameAs(mem[room*int(r.id)+7:][:n], src); err != nil {
				return fmt.Errorf("bytes written to rank %d: %w", p, err)
			}
			copy(mem[room*int(r.id)+7:], "changed")
			copy(src, "changed")
			got := make([]byte, n)
			if err := r.access(r.read, p, all[p].key, at+7, got); err != nil {
				return fmt.Errorf("read from rank %d: %w", p, err)
			}
			beyond := uint64(len(all[p].buf)) - 3
			if err := r.access(r.read, p, all[p].key, all[p].at+beyond, got[:4]); !errors.Is(err, transport.ErrBounds) {
				return fmt.Errorf("read beyond the end: got %w, want %w", orNone(err), transport.ErrBounds)
			}
			return errors.Join(sameAs(got, src), r.dom.(transport.SharedMemoryDomain).Unmap(mem))
		})
		if err != nil {
			return err
		}
		return r.unshare(all)
	})
}

// testSharedWords tests the protocol of SharedMemoryDomain. The ranks form a ring. In each round,
// each rank sleeps until its word in shared memory has the number of the round, stores the number
// in the next rank's word, and wakes the next rank. If a wake-up is lost, a Wait lasts until the
// timeout, and the test fails.
func testSharedWords(w *world) {
	all := make([]shared, len(w.ranks))
	rounds := uint64(4_000 / len(w.ranks))
	w.each(func(r *rank) error {
		dom := r.dom.(transport.SharedMemoryDomain)
		if err := r.allocate(all, 8); err != nil {
			return err
		}
		next := transport.Addr((int(r.id) + 1) % r.n)
		mem, err := dom.Map(next, all[next].key)
		if err != nil {
			return err
		}
		own, theirs := wordAt(all[r.id].buf, 0), wordAt(mem, 0)
		pass := func(n uint64) {
			theirs.Store(n)
			if dom.Asleep() {
				dom.Notify(next)
			}
		}
		for round := range rounds {
			if r.id == 0 {
				pass(round + 1)
				if r.n == 1 {
					r.cq.Signal() // Notify is for peers; a rank ends its own Wait by Signal
				}
			}
			err := r.until(fmt.Sprintf("wait for word %d", round+1), func() bool { return own.Load() == round+1 })
			if err != nil {
				return err
			}
			if r.id != 0 {
				pass(round + 1)
			}
		}
		if err := errors.Join(dom.Unmap(mem), r.sync()); err != nil {
			return err
		}
		return r.unshare(all)
	})
}
