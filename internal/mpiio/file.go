package mpiio

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/mpi"
	"github.com/weft-hpc/weft/internal/sys"
)

// Flags of Open besides those of package os. No system uses these bits for os.OpenFile.
const (
	DeleteOnClose = 1 << 28
	UniqueOpen    = 1 << 29
	Sequential    = 1 << 30
)

// File is the type behind pio.File. On a nil or closed File, the calls that return an error return
// ErrClosed.
type File struct {
	c    *mpi.Comm // the file's own communicator
	of   *mpi.Comm // the communicator that the program opened the file with
	f    *os.File
	fd   int
	name string
	flag int

	hosts, leaders []int // by rank: its host; the lowest rank of each host

	turns turns
	// Only the collective operation whose turn it is uses these two.
	scratch scratch
	views   int // number of views that all ranks have tried to make

	running sync.WaitGroup // independent and nonblocking operations that have not ended; see use
	closed  atomic.Bool    // set under mu
	atomic  atomic.Bool
	// If this is true, a write through a view of the file may read and write a larger range, so
	// other writes of the file need locks. It is the same on all ranks.
	sieving atomic.Bool
	gate    sync.RWMutex // read-locked during an independent write; locked while sieving becomes true

	// A lock of the file does not exclude other goroutines of the same rank, so lockMu permits one
	// lock at a time. A goroutine that holds lockMu acquires no other mutex. Only atomically waits
	// for messages while it holds lockMu; all ranks are in the call then.
	lockMu sync.Mutex

	mu      sync.Mutex // also makes use and Close exclude each other
	hints   hints      // guarded by mu
	windows []*mpi.Win // of shared file pointers; in the order in which all ranks made them; guarded by mu
}

// turns lets the collective operations of a file run one at a time, in the order of their calls,
// which is the same on all ranks.
type turns struct {
	mu       sync.Mutex
	last     chan struct{} // closed when the last operation has ended; nil: there was none; guarded by mu
	blocking bool          // a goroutine is in a blocking operation; guarded by mu
}

var errClosed = fmt.Errorf("%w: the file is nil or closed", mpi.ErrClosed)

func (f *File) live() error {
	if f == nil || f.closed.Load() {
		return errClosed
	}
	return nil
}

// use keeps the file open until the caller calls running.Done, because Close waits for that. If the
// file is closed already, use returns errClosed.
func (f *File) use() error {
	if f == nil {
		return errClosed
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed.Load() {
		return errClosed
	}
	f.running.Add(1)
	return nil
}

// enter starts a collective operation. run does its work and returns its result. If another
// goroutine is in a blocking operation, the order of the two is undefined, and enter fails.
func (f *File) enter(op string, blocking bool) (begin func(), end func(), err error) {
	if err := f.live(); err != nil {
		return nil, nil, f.fail(op, mpi.Undefined, err)
	}
	t := &f.turns
	t.mu.Lock()
	if t.blocking {
		t.mu.Unlock()
		return nil, nil, f.broken(op, mpi.ErrConcurrent)
	}
	t.blocking = blocking
	before, done := t.last, make(chan struct{})
	t.last = done
	t.mu.Unlock()
	begin = func() {
		if before != nil {
			<-before // closed when the goroutine of that operation ends it
		}
	}
	end = func() {
		if blocking {
			t.mu.Lock()
			t.blocking = false
			t.mu.Unlock()
		}
		close(done)
	}
	return begin, end, nil
}

// collective runs a blocking collective operation.
func (f *File) collective(op string, run func() (int, error)) (int, error) {
	begin, end, err := f.enter(op, true)
	if err != nil {
		return 0, err
	}
	begin()
	defer end()
	return run()
}

// collectively is collective for an operation without a count.
func (f *File) collectively(op string, run func() error) error {
	_, err := f.collective(op, func() (int, error) { return 0, run() })
	return err
}

// background starts an operation on another goroutine. size is the size of its elements, and run
// returns a number of elements. A collective operation first waits for its turn. If background
// refuses the operation, started is false.
func (f *File) background(op string, collective bool, size int, run func() (int, error)) (r mpi.Request, started bool) {
	begin, end := func() {}, func() {}
	if err := f.use(); err != nil {
		return f.comm().Refused(op, f.fail(op, mpi.Undefined, err)), false
	}
	if collective {
		var err error
		if begin, end, err = f.enter(op, false); err != nil {
			f.running.Done()
			return f.c.Refused(op, err), false
		}
	}
	work := func(run func() (int, error)) (int, error) {
		defer f.running.Done()
		begin()
		defer end()
		n, err := run()
		return n * size, err
	}
	r, started = f.c.Background(op, size, func() (int, error) { return work(run) })
	if !started {
		// The next operation waits for this one, and Close for both. The goroutine ends when the
		// operation before this one has ended.
		go func() { _, _ = work(func() (int, error) { return 0, nil }) }()
	}
	return r, started
}

// takePart starts the part of this rank in a collective operation that the rank has refused, so that
// the other ranks do not wait for it. Close waits for the part.
func (f *File) takePart(op string, run func() (int, error)) {
	if f.use() != nil {
		return // no rank waits in a call on a closed file
	}
	begin, end, err := f.enter(op, false)
	if err != nil { // enter has revoked the communicator
		f.running.Done()
		return
	}
	go func() { // ends when the operation has ended; Close waits for it
		defer f.running.Done()
		begin()
		defer end()
		_, _ = run() // the caller has returned the error
	}()
}

func (f *File) comm() *mpi.Comm {
	if f == nil {
		return nil
	}
	return f.c
}

// Open implements pio.Open, which documents the call.
func Open(c *mpi.Comm, name string, flag int, perm fs.FileMode, list []Hint) (*File, error) {
	const op = "Open"
	if err := c.OneGroup(op); err != nil {
		return nil, (&File{name: name}).fail(op, mpi.Undefined, err)
	}
	own, err := c.Dup()
	if err != nil {
		return nil, (&File{name: name}).fail(op, mpi.Undefined, err)
	}
	own.HideCalls()
	f := &File{c: own, of: c, name: name, flag: flag, hints: defaultHints(), hosts: own.Hosts(), leaders: own.HostLeaders()}
	err = f.open(op, perm, list)
	if err == nil {
		return f, nil
	}
	if f.f != nil {
		_ = f.f.Close() // err is the first error
	}
	_ = own.Free() // err is the first error
	return nil, err
}

func (f *File) open(op string, perm fs.FileMode, list []Hint) error {
	err := checkFlags(f.flag)
	if err == nil {
		err = f.hints.set(list)
	}
	if err := f.sameHints(op, err, f.hints.hash(f.flag)); err != nil {
		return err
	}
	f.hints.aggregators = aggregators(f.hosts, f.leaders, f.hints.cbNodes)
	// Rank 0 creates the file before the others open it. It truncates the file when all have opened it,
	// so that the file stays as it was if one of them cannot.
	const first = os.O_CREATE | os.O_EXCL
	flag := f.flag &^ (DeleteOnClose | UniqueOpen | Sequential | os.O_APPEND | os.O_TRUNC)
	if f.c.Rank() == 0 {
		f.f, err = os.OpenFile(f.name, flag, perm)
	}
	if err := f.agree(op, err); err != nil {
		return err
	}
	if f.c.Rank() > 0 {
		f.f, err = os.OpenFile(f.name, flag&^first, 0)
	}
	var info fs.FileInfo
	if err == nil {
		f.fd = int(f.f.Fd())
		if info, err = f.f.Stat(); err == nil && info.IsDir() {
			err = fmt.Errorf("%w: it is a directory", ErrAccess)
		}
	}
	err = f.agree(op, err)
	if err == nil && f.flag&os.O_TRUNC != 0 {
		if f.c.Rank() == 0 && info.Mode().IsRegular() { // for other files O_TRUNC has no effect
			err = f.f.Truncate(0)
		}
		err = f.agree(op, err)
	}
	if err != nil && f.c.Rank() == 0 && flag&os.O_EXCL != 0 {
		_ = os.Remove(f.name) // this call has made the file; err is the first error
	}
	return err
}

// sameHints agrees on err, and checks that all ranks have the same hash.
func (f *File) sameHints(op string, err error, hash int64) error {
	all, err := f.exchange(op, op, err, hash)
	if err != nil {
		return err
	}
	for r, h := range all {
		if h != all[0] {
			return f.fail(op, r, fmt.Errorf("%w: it passes other flags, or other hints for collective calls, than rank 0", mpi.ErrMismatch))
		}
	}
	return nil
}

func checkFlags(flag int) error {
	access := flag & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)
	switch {
	case access != os.O_RDONLY && access != os.O_WRONLY && access != os.O_RDWR:
		return fmt.Errorf("%w: two of O_RDONLY, O_WRONLY and O_RDWR", mpi.ErrArg)
	case access == os.O_RDONLY && flag&(os.O_CREATE|os.O_EXCL|os.O_TRUNC) != 0:
		return fmt.Errorf("%w: O_RDONLY with O_CREATE, O_EXCL or O_TRUNC", mpi.ErrArg)
	case flag&os.O_EXCL != 0 && flag&os.O_CREATE == 0:
		return fmt.Errorf("%w: O_EXCL without O_CREATE", mpi.ErrArg)
	case access == os.O_RDWR && flag&Sequential != 0:
		return fmt.Errorf("%w: Sequential with O_RDWR", mpi.ErrArg)
	}
	return nil
}

// checkAccess returns ErrAccess if the file was not opened for writing, or for reading.
func (f *File) checkAccess(write bool) error {
	access := f.flag & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)
	switch {
	case write && access == os.O_RDONLY:
		return fmt.Errorf("%w: it is read-only", ErrAccess)
	case !write && access == os.O_WRONLY:
		return fmt.Errorf("%w: it is write-only", ErrAccess)
	}
	return nil
}

// Close implements pio.File.Close, which documents the call.
func (f *File) Close() error {
	const op = "Close"
	return f.collectively(op, func() error {
		if f.closed.Load() {
			return f.fail(op, mpi.Undefined, errClosed)
		}
		_, first := f.exchange(op, op, nil)
		if errors.Is(first, errOtherCall) {
			return first // the file stays open, so that the ranks can still close it together
		}
		f.mu.Lock()
		f.closed.Store(true) // from here on use fails
		f.mu.Unlock()
		f.running.Wait()
		note := func(err error) {
			if first == nil {
				first = err
			}
		}
		f.mu.Lock()
		windows := f.windows
		f.mu.Unlock()
		for _, w := range windows {
			if first != nil {
				_ = w.Revoke() // so that Free does not wait for other ranks
			}
			note(f.fail(op, mpi.Undefined, errors.Join(w.UnlockAll(), w.Free())))
		}
		note(f.agree(op, f.f.Close()))
		if f.flag&DeleteOnClose != 0 {
			var err error
			if f.c.Rank() == 0 {
				err = os.Remove(f.name)
			}
			note(f.agree(op, err))
		}
		note(f.fail(op, mpi.Undefined, f.c.Free()))
		return first
	})
}

// Size implements pio.File.Size, which documents the call.
func (f *File) Size() (int64, error) {
	if err := f.live(); err != nil {
		return 0, f.fail("Size", mpi.Undefined, err)
	}
	n, err := f.size()
	return n, f.fail("Size", mpi.Undefined, err)
}

func (f *File) size() (int64, error) {
	info, err := f.f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Truncate implements pio.File.Truncate, which documents the call.
func (f *File) Truncate(size int64) error {
	return f.resize("Truncate", size, func() error { return f.f.Truncate(size) })
}

// Preallocate implements pio.File.Preallocate, which documents the call.
func (f *File) Preallocate(size int64) error {
	const op = "Preallocate"
	var rewrites int64 // rank 0 sets it to 1 if it must write the bytes again
	return f.resizeWith(op, size, func() (err error) {
		if size > 0 {
			err = fallocate(f.fd, size)
		}
		if errors.Is(err, errors.ErrUnsupported) {
			rewrites, err = 1, f.checkAccess(false)
		}
		return err
	}, func() error {
		all, err := f.exchange(op, "rewrite", nil, rewrites)
		if err != nil || all[0] == 0 {
			return err
		}
		return f.rewrite(op, size)
	})
}

// fallocate is a variable for tests of file systems that have no such call.
var fallocate = sys.Allocate

// resize runs change on rank 0.
func (f *File) resize(op string, size int64, change func() error) error {
	return f.resizeWith(op, size, change, func() error { return nil })
}

// resizeWith runs change on rank 0, and then finish on all ranks.
func (f *File) resizeWith(op string, size int64, change, finish func() error) error {
	return f.collectively(op, func() error {
		err := f.checkAccess(true)
		switch {
		case err != nil:
		case size < 0:
			err = fmt.Errorf("%w: a size of %d bytes", mpi.ErrArg, size)
		case f.flag&Sequential != 0:
			err = fmt.Errorf("%w: it is sequential", ErrAccess)
		}
		all, err := f.exchange(op, op, err, size)
		if err != nil {
			return err
		}
		for r, s := range all {
			if s != all[0] {
				return f.fail(op, r, fmt.Errorf("%w: its size is %d, that of rank 0 is %d", mpi.ErrMismatch, s, all[0]))
			}
		}
		if f.c.Rank() == 0 {
			err = change()
		}
		if err = f.agree(op, err); err != nil {
			return err
		}
		return finish()
	})
}

// rewrite lets rank 0 read the first size bytes of the file and write them again, so that the file
// system allocates storage for them. Other goroutines and ranks may write the file at the same time.
// So rank 0 locks each part that it writes, and meanwhile all other writes lock their ranges.
func (f *File) rewrite(op string, size int64) error {
	if err := f.agree(op, f.tryLock()); err != nil {
		return err
	}
	before := f.sieving.Load()
	f.gate.Lock() // waits for the writes without locks that are in progress
	f.sieving.Store(true)
	f.gate.Unlock()
	err := f.agree(op, nil) // after this, the writes of all ranks lock
	if err == nil && f.c.Rank() == 0 {
		err = f.rewriteParts(size)
	}
	err = f.agree(op, err)
	f.sieving.Store(before)
	return err
}

// rewriteParts does the work of rank 0 in rewrite.
func (f *File) rewriteParts(size int64) error {
	buf := make([]byte, min(size, 1<<20))
	for off := int64(0); off < size; {
		part := buf[:min(int64(len(buf)), size-off)]
		err := f.locked(off, off+int64(len(part)), true, func() error {
			if err := readFull(f.f, part, off); err != nil {
				return err
			}
			_, err := f.f.WriteAt(part, off)
			return err
		})
		if err != nil {
			return err
		}
		off += int64(len(part))
	}
	return nil
}

// Sync implements pio.File.Sync, which documents the call.
func (f *File) Sync() error {
	return f.collectively("Sync", func() error {
		// All writes of the host have ended before one of its ranks calls fsync(2).
		if _, err := f.exchange("Sync", "Sync", nil); err != nil {
			return err
		}
		var err error
		for _, r := range f.leaders {
			if r == f.c.Rank() {
				err = f.f.Sync()
			}
		}
		return f.agree("Sync", err)
	})
}

// SetAtomic implements pio.File.SetAtomic, which documents the call.
func (f *File) SetAtomic(on bool) error {
	return f.collectively("SetAtomic", func() error {
		var own int64
		var err error
		if on {
			own, err = 1, f.tryLock()
		}
		all, err := f.exchange("SetAtomic", "SetAtomic", err, own)
		if err != nil {
			return err
		}
		for r, x := range all {
			if x != all[0] {
				return f.fail("SetAtomic", r, fmt.Errorf("%w: it passes another value than rank 0", mpi.ErrMismatch))
			}
		}
		f.atomic.Store(on)
		return nil
	})
}

// tryLock returns an error that wraps ErrNotSupported if the file cannot be locked.
func (f *File) tryLock() error {
	err := f.locked(0, 1, f.checkAccess(true) == nil, func() error { return nil })
	if err != nil {
		return fmt.Errorf("%w: locks of the file: %w", mpi.ErrNotSupported, err)
	}
	return nil
}

// locked runs do while the rank has a lock of the bytes of the file from off up to end.
func (f *File) locked(off, end int64, exclusive bool, do func() error) error {
	f.lockMu.Lock()
	defer f.lockMu.Unlock()
	if err := sys.Lock(f.fd, off, end-off, exclusive); err != nil {
		return os.NewSyscallError("lock", err)
	}
	err := do()
	if uerr := sys.Unlock(f.fd, off, end-off); err == nil && uerr != nil {
		err = os.NewSyscallError("unlock", uerr)
	}
	return err
}

// SetHints implements pio.File.SetHints, which documents the call.
func (f *File) SetHints(list []Hint) error {
	return f.collectively("SetHints", func() error {
		f.mu.Lock()
		h := f.hints
		f.mu.Unlock()
		err := h.set(list)
		if err := f.sameHints("SetHints", err, h.hash(f.flag)); err != nil {
			return err
		}
		h.aggregators = aggregators(f.hosts, f.leaders, h.cbNodes)
		f.mu.Lock()
		f.hints = h
		f.mu.Unlock()
		return nil
	})
}

func (f *File) currentHints() hints {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hints
}

// Hints implements pio.File.Hints, which documents the call.
func (f *File) Hints() []Hint {
	if f == nil {
		return nil
	}
	h := f.currentHints()
	return h.list()
}

// Atomic implements pio.File.Atomic, which documents the call.
func (f *File) Atomic() bool { return f != nil && f.atomic.Load() }

// Name implements pio.File.Name, which documents the call.
func (f *File) Name() string {
	if f == nil {
		return ""
	}
	return f.name
}

// Flags implements pio.File.Flags, which documents the call.
func (f *File) Flags() int {
	if f == nil {
		return 0
	}
	return f.flag
}

// Group implements pio.File.Group, which documents the call.
func (f *File) Group() mpi.Group { return f.comm().Group() }
