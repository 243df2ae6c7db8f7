// Package pio provides parallel files in the manner of MPI-IO (MPI 4.1 §14): all ranks of a
// communicator read and write one file.
//
//	f, err := pio.Open(c, "matrix", os.O_RDWR|os.O_CREATE, 0o644)
//	…
//	v, err := pio.NewView[float64](f, 0, comm.Subarray(sizes, subsizes, starts))
//	…
//	_, err = pio.WriteAll(v, block)   // each rank's block goes to its place in the file
//	…
//	err = f.Close()
//
// A [View] says which elements of the file a rank sees. The functions of this package read and
// write elements of a view. In memory the elements are a slice or a [comm.View], so they need not
// be consecutive in memory either.
//
// # Index by topic
//
// Files:
//   - [Open], [File.Close], [File.Sync], [File.Size], [File.Truncate], [File.Preallocate];
//     os.Remove deletes a file
//   - bytes at offsets: [File.ReadAt], [File.WriteAt]
//   - hints: [Hint], [File.SetHints], [File.Hints]; consistency: [File.SetAtomic]
//
// Views:
//   - [NewView], [External32], [SharedPointer]
//   - file pointers: [View.Seek], [View.Position], [View.SeekShared], [View.PositionShared]
//
// Reads and writes. Each has a nonblocking form, whose name begins with I and a lower-case letter,
// and each collective one also has a split form, whose names end with Begin and End:
//
//	                 at element i   at the rank's own pointer   at the shared pointer
//	independent      ReadAt         Read                        ReadShared
//	                 WriteAt        Write                       WriteShared
//	collective       ReadAtAll      ReadAll                     ReadOrdered
//	                 WriteAtAll     WriteAll                    WriteOrdered
//
// The two ordered calls have a split form and no nonblocking one, as in MPI.
//
// # Collective and independent calls
//
// All ranks of the file must make its collective calls, in the same order. If the data of the ranks
// interleaves in the file, a collective call is much faster than independent calls: the ranks send
// their data to aggregators, which access the file in large ranges.
//
// # Consistency
//
// A rank reads what it has written itself, unless another rank has written the same bytes. If two
// ranks access the same bytes, and one of them writes, the result is undefined unless the program
// orders the two calls, for example by a [comm.Comm.Barrier]: the first call must have returned
// before the second one begins. On a file system that several hosts share, the program must also
// call [File.Sync] after the write and again before the read. If the two calls run at the same
// time, the reader may get some of the new bytes and some of the old ones; [File.SetAtomic]
// excludes that. Writes of different bytes by one [File] never change each other's bytes, even if
// the bytes of one rank lie in the gaps of another rank's view. If a program opens a file twice, a
// write through a view with gaps on one File may undo a write on the other File.
//
// # Errors
//
// Errors are of type [comm.Error]. They wrap an error of this package or of package comm, or one of
// the system, such as fs.ErrNotExist or syscall.ENOSPC. If a collective call fails on any rank, it
// returns the error of the lowest such rank on all ranks, and Peer of the error is that rank. It is
// then undefined which elements of the call were read or written. The call has changed no other
// elements, and the file remains usable. If communication fails, for example because a rank has
// died, the calls of all ranks return the error, and only Close remains possible.
package pio
