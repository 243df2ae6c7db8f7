package mpiio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"math"
	"syscall"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/kernel"
	"github.com/weft-hpc/weft/internal/layout"
	"github.com/weft-hpc/weft/internal/mpi"
)

// Reasons of errors; errors.Is finds them.
var (
	// ErrAccess: the file was opened without the access that the call needs, or the call does not
	// fit the flags of the file.
	ErrAccess = errors.New("file was not opened for this access")
	// ErrNoShared: the view has no shared file pointer.
	ErrNoShared = errors.New("view has no shared file pointer")
	// ErrSplit: a split collective operation of the view is active, or none is.
	ErrSplit = errors.New("split collective operation")
)

// sentinels are the errors that errors.Is finds in the error of another rank. The index of an error
// is part of the encoding.
var sentinels = []error{
	mpi.ErrArg, mpi.ErrCount, mpi.ErrType, mpi.ErrMismatch, mpi.ErrClosed, mpi.ErrNotSupported, layout.ErrLayout,
	ErrAccess, ErrNoShared, ErrSplit, fs.ErrNotExist, fs.ErrExist, fs.ErrPermission, fs.ErrClosed, io.ErrUnexpectedEOF,
}

// remoteError is an error of another rank.
type remoteError struct {
	text string
	is   []error // an errno and elements of sentinels
}

func (e *remoteError) Error() string   { return e.text }
func (e *remoteError) Unwrap() []error { return e.is }

// errorBytes is the length of the encoding of an error:
//
//	0       4           8      12
//	│ errno │ sentinels │ length │ text …
//
// errno is 0 if the error has none. The field sentinels has a bit for each element of the list of
// that name. Hosts of a job have the same system, so an errno means the same on all of them.
const (
	errorBytes  = 512
	errorHeader = 12
)

func encodeError(err error) []byte {
	b := make([]byte, errorBytes)
	if no := syscall.Errno(0); errors.As(err, &no) {
		binary.LittleEndian.PutUint32(b, uint32(no))
	}
	var bits uint32
	for i, s := range sentinels {
		if errors.Is(err, s) {
			bits |= 1 << i
		}
	}
	binary.LittleEndian.PutUint32(b[4:], bits)
	n := copy(b[errorHeader:], err.Error())
	binary.LittleEndian.PutUint32(b[8:], uint32(n))
	return b
}

// decodeError is the reverse of encodeError. It accepts any bytes.
func decodeError(b []byte) error {
	if len(b) < errorHeader {
		return &remoteError{text: "unknown error"}
	}
	e := &remoteError{}
	if no := binary.LittleEndian.Uint32(b); no != 0 {
		e.is = append(e.is, syscall.Errno(no))
	}
	bits := binary.LittleEndian.Uint32(b[4:])
	for i, s := range sentinels {
		if bits&(1<<i) != 0 {
			e.is = append(e.is, s)
		}
	}
	text := b[errorHeader:]
	e.text = string(text[:min(len(text), int(binary.LittleEndian.Uint32(b[8:])))])
	return e
}

// fail returns err as an error of the call op on the file, or nil if err is nil. rank is the rank
// on which the call has failed, or mpi.Undefined.
func (f *File) fail(op string, rank int, err error) error {
	if err == nil {
		return nil
	}
	for {
		e, ok := err.(*mpi.Error) //nolint:errorlint // only the outermost one names a call again
		if !ok {
			break
		}
		if e.Comm == f.label() {
			return err
		}
		err = e.Err
	}
	if e, ok := err.(*fs.PathError); ok { //nolint:errorlint // the path is that of the file
		err = fmt.Errorf("%s: %w", e.Op, e.Err)
	}
	return &mpi.Error{Op: op, Comm: f.label(), Peer: rank, Tag: mpi.Undefined, Err: err}
}

// label names the file in errors.
func (f *File) label() string {
	if f == nil {
		return ""
	}
	return "file " + f.name
}

// broken handles an error of communication: it revokes the communicator of the file, so that no
// rank waits for this one, and returns the error of the call op.
func (f *File) broken(op string, err error) error {
	_ = f.c.Revoke() // fails only if the communicator was freed, and then no rank waits
	return f.fail(op, mpi.Undefined, err)
}

// agree ends a step of the collective call op, in which this rank has failed with err, or not. If
// any rank has failed, agree returns the error of the lowest such rank, on all ranks.
func (f *File) agree(op string, err error) error {
	own := []int64{math.MaxInt64}
	if err != nil {
		own[0] = int64(f.c.Rank())
	}
	lowest := make([]int64, 1)
	if cerr := f.c.Allreduce(elem.View(own), elem.View(lowest), mpi.BuiltIn(kernel.Min)); cerr != nil {
		return f.broken(op, cerr)
	}
	if lowest[0] == math.MaxInt64 {
		return nil
	}
	return f.spread(op, int(lowest[0]), err)
}

// spread returns, on all ranks, the error of the rank failed as an error of the call op. err is the
// error of this rank.
func (f *File) spread(op string, failed int, err error) error {
	if failed < 0 || failed >= f.c.Size() {
		return f.broken(op, fmt.Errorf("%w: rank %d reports an error", mpi.ErrMismatch, failed))
	}
	b := make([]byte, errorBytes)
	if failed == f.c.Rank() {
		if err == nil {
			return f.broken(op, fmt.Errorf("%w: another rank reports an error of this one", mpi.ErrMismatch))
		}
		err = f.fail(op, failed, err)
		e := err.(*mpi.Error) //nolint:errorlint,forcetypeassert // fail has made it
		copy(b, encodeError(e.Err))
	}
	if cerr := f.c.Bcast(elem.Raw(b), failed); cerr != nil {
		return f.broken(op, cerr)
	}
	if failed == f.c.Rank() {
		return err
	}
	return f.fail(op, failed, decodeError(b))
}

// exchange gathers the records of all ranks, of up to 6 numbers each, and the ranks' errors. The
// records are by rank. If a rank has failed, exchange returns what agree returns. kind says which
// step the ranks execute; if kind differs between ranks, the error is ErrMismatch, on all ranks.
func (f *File) exchange(op, kind string, err error, own ...int64) ([]int64, error) {
	const n = 8 // of all calls, so that different calls are found here, and the file remains usable
	rec := make([]int64, n)
	if rec[1] = hashOf(kind); err != nil {
		rec[0] = 1
	}
	copy(rec[2:], own)
	all := make([]int64, n*f.c.Size())
	if cerr := f.c.Allgather(elem.View(rec), elem.View(all)); cerr != nil {
		return nil, f.broken(op, cerr)
	}
	for r := range f.c.Size() {
		if all[r*n+1] != rec[1] {
			// Each rank finds a difference, because each compares itself with all others.
			return nil, f.fail(op, r, errOtherCall)
		}
	}
	for r := range f.c.Size() {
		if all[r*n] != 0 {
			return nil, f.spread(op, r, err)
		}
		copy(all[r*len(own):], all[r*n+2:][:len(own)])
	}
	return all[:len(own)*f.c.Size()], nil
}

// errOtherCall is the error of exchange if the ranks do different things.
var errOtherCall = fmt.Errorf("%w: it makes another call on the file", mpi.ErrMismatch)

func hashOf(text string) int64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, text) // never fails
	return int64(h.Sum64())
}
