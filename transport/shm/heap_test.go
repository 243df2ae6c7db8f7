//go:build linux && !portable

package shm

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
)

// heapsOf returns the domains of n ranks that share one memory file. Each domain has its own
// mappings of the file. heapsOf sets only the fields that the shared heap needs.
func heapsOf(t testing.TB, n int) []*domain {
	t.Helper()
	l := newLayout(n)
	fd, err := unix.MemfdCreate("weft-test", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "weft-test")
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	require.NoError(t, f.Truncate(l.size))
	ds := make([]*domain, n)
	for i := range ds {
		ds[i] = heapOf(t, f, l, i)
	}
	return ds
}

// heapOf returns the domain of rank self, as heapsOf makes it. f is the memory file, and l its
// layout.
func heapOf(t testing.TB, f *os.File, l layout, self int) *domain {
	t.Helper()
	front, err := unix.Mmap(int(f.Fd()), 0, int(l.inboxes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	d := &domain{self: self, seg: &segment{layout: l, file: f, front: front}}
	d.locals = make([]*peer, l.n)
	for i := range d.locals {
		d.locals[i] = &peer{rank: transport.Addr(i), local: i}
	}
	d.peers, d.size, d.ranks = d.locals, l.n, ranks(l.n)
	d.initHeap()
	t.Cleanup(func() {
		d.closeHeap()
		require.NoError(t, unix.Munmap(front))
	})
	return d
}

// resident returns the number of bytes of memory that the pages of the memory file take.
func resident(t testing.TB, d *domain) int64 {
	t.Helper()
	st, err := d.seg.file.Stat()
	require.NoError(t, err)
	return st.Sys().(*syscall.Stat_t).Blocks * 512
}

// TestHeap has three ranks allocate and free memory at random, and map each other's memory in
// between. Memory must be zero when it is allocated, must have the same content at all ranks, and
// must have a key that was not used before. At the end all memory is free, and its pages are freed
// too.
func TestHeap(t *testing.T) {
	ds := heapsOf(t, 3)
	r := rand.New(rand.NewPCG(1, 2))
	type block struct {
		owner int
		mem   []byte
		mr    transport.MemoryRegion
		fill  byte
	}
	var live []block
	gone := map[uint64]int{} // by key of a closed region: its owner
	for step := range 3000 {
		if len(live) > 40 || len(live) > 0 && r.IntN(2) == 0 {
			i := r.IntN(len(live))
			b := live[i]
			gone[b.mr.Key()] = b.owner
			require.NoError(t, b.mr.Close())
			live = slices.Delete(live, i, i+1)
			continue
		}
		b := block{owner: r.IntN(len(ds)), fill: byte(step)}
		n := 1 + r.IntN(20000)
		if r.IntN(20) == 0 {
			n = heapAlign + r.IntN(heapAlign)
		}
		var err error
		b.mem, b.mr, err = ds[b.owner].Alloc(n)
		require.NoError(t, err)
		require.Len(t, b.mem, n)
		require.Zero(t, b.mr.Base())
		require.Equal(t, heapKey, b.mr.Key()&heapKey)
		require.NotContains(t, gone, b.mr.Key())
		require.True(t, bytes.Equal(make([]byte, n), b.mem), "zeroed")
		b.mem[0], b.mem[n-1] = b.fill, b.fill
		live = append(live, b)
		for d := range ds { // each rank maps a random region, perhaps one that it has mapped before
			c := live[r.IntN(len(live))]
			mem, err := ds[d].Map(transport.Addr(c.owner), c.mr.Key())
			require.NoError(t, err)
			require.Len(t, mem, len(c.mem))
			require.Equal(t, [2]byte{c.fill, c.fill}, [2]byte{mem[0], mem[len(mem)-1]})
			require.NoError(t, ds[d].Unmap(mem))
		}
	}
	for _, b := range live {
		gone[b.mr.Key()] = b.owner
		require.NoError(t, b.mr.Close())
		require.NoError(t, b.mr.Close(), "twice")
	}
	for key, owner := range gone {
		for _, d := range ds {
			_, err := d.Map(transport.Addr(owner), key)
			require.ErrorIs(t, err, transport.ErrKey)
		}
	}
	for _, d := range ds {
		require.Equal(t, extents{{0, heapSize}}, d.heap.free)
	}
	require.Less(t, resident(t, ds[0]), int64(1<<20), "the pages of freed memory are freed")
}

func TestHeapBounds(t *testing.T) {
	ds := heapsOf(t, 2)
	mem, mr, err := ds[1].Alloc(5000)
	require.NoError(t, err)
	copy(mem[4990:], "0123456789")
	p := ds[0].local(1)
	got, err := ds[0].mapRange(p, mr.Key(), 4995, 5)
	require.NoError(t, err)
	require.Equal(t, "56789", string(got))
	require.Equal(t, 5, cap(got))
	for _, c := range []struct {
		key, addr uint64
		n         int
		err       error
	}{
		{mr.Key(), 4996, 5, transport.ErrBounds},
		{mr.Key(), 5001, 0, transport.ErrBounds},
		{mr.Key(), 1 << 63, 1, transport.ErrBounds},
		{mr.Key(), ^uint64(0), 2, transport.ErrBounds},
		{mr.Key() &^ keyShared, 0, 1, transport.ErrKey},
		{mr.Key() ^ 1<<20, 0, 1, transport.ErrKey},
		{mr.Key() ^ 1, 0, 1, transport.ErrKey},
		{0, 0, 1, transport.ErrKey},
	} {
		_, err := ds[0].mapRange(p, c.key, c.addr, c.n)
		require.ErrorIs(t, err, c.err, "%+v", c)
	}
	for _, to := range []transport.Addr{-1, 2, 1 << 40} {
		_, err := ds[0].Map(to, mr.Key())
		require.ErrorIs(t, err, transport.ErrAddress)
	}
	ds[0].ranks = ds[0].ranks[:1] // rank 1 is on another host
	_, err = ds[0].Map(1, mr.Key())
	require.ErrorIs(t, err, transport.ErrPeerDown)
}

// TestCorruptDirectory writes invalid offsets and sizes to the directory in which rank 1 lists its
// allocations. Map by rank 0 must return a protocol error. It must accept an entry for the last
// page of rank 1's heap, and access to that page must not fault.
func TestCorruptDirectory(t *testing.T) {
	ds := heapsOf(t, 2)
	_, mr, err := ds[1].Alloc(5000)
	require.NoError(t, err)
	slot := int(mr.Key() % dirEntries)
	e := ds[1].entry(1, slot)
	for i, c := range [][2]uint64{
		{1, 4096}, {4096, 0}, {0, heapSize + 1}, {heapSize, 4096}, {heapSize - 4096, 8192}, {1 << 63, 4096}, {4096, ^uint64(0)}, {^uint64(4095), 8192},
	} {
		key := mr.Key() ^ uint64(i+1)<<30
		e.at.Store(c[0])
		e.size.Store(c[1])
		e.key.Store(key)
		_, err := ds[0].Map(1, key)
		require.ErrorIs(t, err, transport.ErrProtocol, "%v", c)
	}
	const last = heapSize - 4096
	e.at.Store(last)
	e.size.Store(4096)
	e.key.Store(mr.Key())
	mem, err := ds[0].Map(1, mr.Key())
	require.NoError(t, err)
	require.Equal(t, make([]byte, 4096), mem)
}

func TestHeapErrors(t *testing.T) {
	d := heapsOf(t, 1)[0]
	for _, n := range []int{0, -1} {
		_, _, err := d.Alloc(n)
		require.ErrorIs(t, err, transport.ErrBounds)
	}
	before := resident(t, d)
	// All are larger than the memory of any host that runs the tests.
	for _, n := range []int{1 << 62, heapSize + 1, heapSize, heapSize / 2} {
		_, _, err := d.Alloc(n)
		require.ErrorIs(t, err, unix.ENOMEM)
	}
	require.Equal(t, before, resident(t, d))
	require.Equal(t, extents{{0, heapSize}}, d.heap.free)

	d.heap.free = extents{{0, 3 * pageSize}} // a heap of three pages
	_, a, err := d.Alloc(pageSize + 1)
	require.NoError(t, err)
	_, _, err = d.Alloc(pageSize + 1)
	require.ErrorIs(t, err, unix.ENOMEM)
	_, b, err := d.Alloc(1)
	require.NoError(t, err)
	_, _, err = d.Alloc(1)
	require.ErrorIs(t, err, unix.ENOMEM)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	_, a, err = d.Alloc(3 * pageSize)
	require.NoError(t, err)
	require.NoError(t, a.Close())

	d.heap.free = extents{{0, heapSize}}
	all := make([]transport.MemoryRegion, dirEntries)
	for i := range all {
		_, all[i], err = d.Alloc(1)
		require.NoError(t, err)
	}
	_, _, err = d.Alloc(1)
	require.ErrorIs(t, err, transport.ErrAgain)
	require.NoError(t, all[77].Close())
	_, all[77], err = d.Alloc(1)
	require.NoError(t, err)
	for _, mr := range all {
		require.NoError(t, mr.Close())
	}
	d.closed = true
	_, _, err = d.Alloc(1)
	require.ErrorIs(t, err, transport.ErrClosed)
	_, err = d.Map(0, a.Key())
	require.ErrorIs(t, err, transport.ErrClosed)
}

// TestFreedWhileMapped has a peer access memory that it has mapped and that the owner has freed
// since. The peer reads zeros. If the peer writes to the freed memory, the next Alloc that returns
// that memory still returns zeros.
func TestFreedWhileMapped(t *testing.T) {
	ds := heapsOf(t, 2)
	mem, mr, err := ds[1].Alloc(3 * pageSize)
	require.NoError(t, err)
	mem[pageSize] = 7
	stale, err := ds[0].Map(1, mr.Key())
	require.NoError(t, err)
	require.EqualValues(t, 7, stale[pageSize])
	require.NoError(t, mr.Close())
	require.Equal(t, make([]byte, 3*pageSize), stale)
	stale[pageSize] = 8
	mem, mr, err = ds[1].Alloc(3 * pageSize)
	require.NoError(t, err)
	require.Equal(t, make([]byte, 3*pageSize), mem)
	stale[0] = 9
	require.EqualValues(t, 9, mem[0], "the allocation must reuse the memory")
	ds[1].closeHeap()
	_, err = ds[0].Map(1, mr.Key())
	require.ErrorIs(t, err, transport.ErrKey)
	require.EqualValues(t, 9, stale[0], "a peer that has not noticed the domain's end may still read it")
	require.NoError(t, mr.Close(), "Close after the domain's Close")
}

// foreignPID is the process id of a peer in another pid namespace. No process has it in that of the
// tests, because it is greater than all process ids of Linux.
const foreignPID = 1 << 22

// TestCloseAwaitsWritersOfAnotherNamespace closes an extent while a peer in another pid namespace
// announces in its hazard line that it is writing to the extent. Close must not return before the
// peer clears the line, although no process of this namespace has the peer's process id.
func TestCloseAwaitsWritersOfAnotherNamespace(t *testing.T) {
	all := sides(t, 2, "auto")
	a, p := all[0], all[0].local(1)
	require.NoError(t, a.authenticate(p))
	p.pid = foreignPID
	_, mr, err := a.Alloc(100)
	require.NoError(t, err)
	hazard := &a.seg.claims(1).hazards.key
	hazard.Store(mr.Key())
	closed := make(chan error, 1)
	go func() { closed <- mr.Close() }() // ends when the hazard line is cleared; received below
	select {
	case err := <-closed:
		require.Fail(t, "closed while a peer writes", "%v", err)
	case <-time.After(100 * time.Millisecond):
	}
	hazard.Store(0)
	require.NoError(t, <-closed)
}

// TestMemoryOfADisconnectedPeerOfAnotherNamespace frees extents after this rank has disconnected a
// peer in another pid namespace. The peer still runs and may store to them, so this rank must not use
// their memory again before exitGrace after the end of the peer.
func TestMemoryOfADisconnectedPeerOfAnotherNamespace(t *testing.T) {
	all := sides(t, 2, "auto")
	a, p := all[0], all[0].local(1)
	require.NoError(t, a.authenticate(p))
	p.pid = foreignPID
	require.NoError(t, a.e.Disconnect(1))
	free := func() bool {
		_, mr, err := a.Alloc(100)
		require.NoError(t, err)
		at := mr.(*heapRegion).at
		require.NoError(t, mr.Close())
		return a.heap.free[0].at == at
	}
	require.False(t, free(), "the peer runs")
	p.state.alive.Or(ownerDied)
	require.False(t, free(), "a thread of the peer may still run")
	p.endSeen = p.endSeen.Add(-exitGrace)
	require.True(t, free())
}

// TestAllocLasting closes a domain that has memory from AllocLasting. The rank can still use the
// memory until it closes the region, and its peers cannot map it any more.
func TestAllocLasting(t *testing.T) {
	ds := heapsOf(t, 2)
	mem, mr, err := ds[1].AllocLasting(100)
	require.NoError(t, err)
	mem[99] = 1
	ds[1].closeHeap()
	_, err = ds[0].Map(1, mr.Key())
	require.ErrorIs(t, err, transport.ErrKey)
	require.EqualValues(t, 1, mem[99])
	require.NoError(t, mr.Close())
	require.Nil(t, mr.(*heapRegion).mem)
}

// TestWindows maps extents of a peer's heap (ranges of bytes), which Map does in windows of
// windowSize bytes: extents beyond the first window, extents longer than a window, and extents of
// several lengths at one offset. The last byte of each extent must be the byte that the test has
// written to the file.
func TestWindows(t *testing.T) {
	ds := heapsOf(t, 2)
	e := ds[1].entry(1, 0)
	look := func(at, size uint64, mark byte) []byte {
		key := heapKey | uint64(mark)<<dirBits
		e.key.Store(0)
		e.at.Store(at)
		e.size.Store(size)
		e.key.Store(key)
		_, err := unix.Pwrite(int(ds[1].seg.file.Fd()), []byte{mark}, ds[1].seg.heap(1)+int64(at+size)-1)
		require.NoError(t, err)
		mem, err := ds[0].Map(1, key)
		require.NoError(t, err)
		require.Len(t, mem, int(size))
		require.Equal(t, mark, mem[size-1])
		return mem
	}
	first := look(3*windowSize, 4096, 1)
	look(3*windowSize+4096, windowSize-4096, 2)
	look(3*windowSize, 3*windowSize, 3)
	look(3*windowSize, 2*windowSize, 4)
	look(5*windowSize+8192, 10, 5)
	look(heapSize-windowSize, windowSize, 6)
	require.EqualValues(t, 1, first[4095], "a slice that Map has returned stays valid")
}

// TestHeapOfAnotherProcess has a rank in a child process allocate memory, which rank 0 in this
// process maps. Rank 0 can still use the memory after the child was killed.
func TestHeapOfAnotherProcess(t *testing.T) {
	const env = "WEFT_SHM_HEAP_KEY"
	if text := os.Getenv(env); text != "" {
		key, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		d := heapOf(t, os.NewFile(3, "heap"), newLayout(2), 1)
		mem, err := d.Map(0, key)
		require.NoError(t, err)
		view[atomic.Uint64](mem)[1].Add(5)
		mem, mr, err := d.Alloc(heapAlign)
		require.NoError(t, err)
		mem[heapAlign-1] = 77
		fmt.Println(mr.Key())
		select {} // until the test kills this process
	}
	f := heapsOf(t, 1)[0].seg.file
	l := newLayout(2)
	require.NoError(t, f.Truncate(l.size))
	d := heapOf(t, f, l, 0)
	mem, mr, err := d.Alloc(100)
	require.NoError(t, err)
	view[atomic.Uint64](mem)[1].Store(37)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHeapOfAnotherProcess$")
	cmd.Env = append(os.Environ(), env+"="+strconv.FormatUint(mr.Key(), 10))
	cmd.ExtraFiles, cmd.Stderr = []*os.File{f}, os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var key uint64
	_, err = fmt.Fscan(out, &key)
	require.NoError(t, err)
	require.EqualValues(t, 42, view[atomic.Uint64](mem)[1].Load())
	theirs, err := d.Map(1, key)
	require.NoError(t, err)
	require.EqualValues(t, 77, theirs[heapAlign-1])
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	theirs[0] = 1
	require.EqualValues(t, 77, theirs[heapAlign-1])
}

// TestMapRangeAllocatesNothing checks that mapRange does not allocate, because every RMA operation
// on memory from Alloc calls it.
func TestMapRangeAllocatesNothing(t *testing.T) {
	ds := heapsOf(t, 2)
	_, mr, err := ds[1].Alloc(5000)
	require.NoError(t, err)
	p, key, sum := ds[0].local(1), mr.Key(), 0
	require.Zero(t, testing.AllocsPerRun(100, func() {
		b, err := ds[0].mapRange(p, key, 8, 8)
		if err == nil {
			sum += len(b)
		}
	}))
	require.NotZero(t, sum)
}

func TestDirEntrySize(t *testing.T) {
	require.Len(t, view[dirEntry](make([]byte, dirSize)), dirEntries)
}
