// Package comm is message passing in the manner of MPI: communicators, point-to-point messages,
// collectives and windows. The elements of a message are a slice of any type without pointers.
//
//	comm.Main(func(c *comm.Comm) error {
//		sum := make([]float64, 1)
//		if err := comm.Allreduce(c, []float64{float64(c.Rank())}, sum, comm.Sum); err != nil {
//			return err
//		}
//		fmt.Println(c.Rank(), "of", c.Size(), "sum", sum[0])
//		return nil
//	})
//
// Names and meanings are those of MPI. The comment of a call names the MPI call that it stands for,
// and in most cases the section of the MPI 4.1 standard. Package commtest runs ranks as goroutines,
// for unit tests and without a launcher.
//
// # Index by topic
//
// Start and end of a program:
//   - [Main], [MainContext], or [Init] and [Comm.Finalize]; [Comm.Abort]
//   - the launcher, hosts, local rank and so on: [Comm.Job]
//
// Point-to-point messages:
//   - blocking: [Send], [Recv], [Sendrecv], [SendrecvReplace]; other kinds of send: [Ssend],
//     [Bsend], [Rsend]
//   - nonblocking: [Isend], [Issend], [Irecv]
//   - messages of unknown length: [RecvAlloc], [Comm.Probe], [Comm.Iprobe], [CountOf]
//   - matched probes: [Comm.Mprobe], [Comm.Improbe], [Mrecv], [Imrecv]; a loop over all messages:
//     [Comm.Messages]
//   - descriptions and special values: [Status], [AnySource], [AnyTag], [ProcNull]
//
// Go values, which may hold pointers; a [Codec] such as [Gob] encodes them:
//   - messages: [SendValue], [IsendValue], [RecvValue], [MrecvValue]
//   - collectives: [BcastValue], [GatherValue], [AllgatherValue], [ScatterValue], [AlltoallValue],
//     [ReduceValue], [AllreduceValue]
//
// Elements of a slice that do not follow each other:
//   - layouts: [Contiguous], [Vector], [Indexed], [IndexedBlock], [Subarray], [Darray], [Combine];
//     from another [Layout]: [Layout.Repeat], [Layout.Strided], [Layout.Shift], [Layout.Resized]
//   - messages: [Of] and the methods of [View], such as [View.Send]; [SendrecvView]
//   - collectives: [View.Bcast], [GatherView], [ScatterView], [AllgatherView], [AlltoallView], [ReduceView],
//     [AllreduceView]
//   - copies: [Pack], [Unpack]
//   - elements in the memory of a GPU, as such a view: [NewDevice], [OnDevice]
//
// Requests:
//   - one [Request]: [Request.Wait], [Request.WaitContext], [Request.Test], [Request.Peek],
//     [Request.Cancel]
//   - several: [WaitAll], [WaitAny], [WaitSome], [TestAll], [TestAny], [TestSome]; with the result
//     of each: [WaitEach], [TestEach]; in the order of their ends: [Completed]
//   - for an operation of the program: [Comm.NewRequest]
//
// Operations with fixed arguments, which the program starts many times:
//   - [Persistent]: [Persistent.Start], [Persistent.Wait], [Persistent.Test]; [StartAll]
//   - messages: [SendInit], [SsendInit], [RecvInit]
//   - collectives: [Comm.BarrierInit], [BcastInit], [AllreduceInit], and a function of this kind
//     for each other collective
//   - messages whose parts several goroutines fill: [PsendInit], [PartSend.Ready]; [PrecvInit],
//     [PartRecv.Arrived]
//
// Collectives. The name of each nonblocking form begins with I and a lower-case letter, as in
// [Ibcast]:
//   - [Comm.Barrier]
//   - from one rank to all: [Bcast], [Scatter], [Scatterv]
//   - from all ranks to one: [Gather], [Gatherv]
//   - from all ranks to all: [Allgather], [Allgatherv], [Alltoall], [Alltoallv]
//   - parts of lengths that only their senders know: [GathervAlloc], [AllgathervAlloc],
//     [ScattervAlloc], [AlltoallvAlloc]
//   - from each rank to a few, which do not know the senders: [SparseAlltoall],
//     [SparseAlltoallFunc]
//
// Collectives between neighbours in a grid or graph, which also have persistent forms:
//   - [NeighborAllgather], [NeighborAllgatherv], [NeighborAllgatherView], [NeighborAlltoall],
//     [NeighborAlltoallv], [NeighborAlltoallView]
//
// Reductions:
//   - [Reduce], [Allreduce], [ReduceScatter], [ReduceScatterBlock], [Scan], [Exscan]; of one
//     element: [AllreduceOne]
//   - operations: [Sum], [Prod], [Min], [Max], [MinLoc], [MaxLoc], [Land], [Lor], [Lxor], [Band],
//     [Bor], [Bxor], and functions of the program: [OpOf], [OpFunc]; by name: [OpByName]
//
// Windows, for one-sided operations:
//   - make and free: [NewWin], [WinOf], [Win.Free]
//   - operations: [Win.Put], [Win.Get], [Win.Accumulate], [Win.GetAccumulate], [Win.FetchOp],
//     [Win.CompareSwap], and forms that return a request, such as [Win.RPut]
//   - epochs of all ranks: [Win.Fence]
//   - epochs with one target or all targets, which make no calls: [Win.Lock], [Win.LockAll],
//     [Win.Flush], [Win.Unlock]
//   - epochs of some ranks: [Win.Post], [Win.Start], [Win.Complete], [Win.Wait]
//   - loads and stores: [Win.Local], [Win.Shared], [Win.Sync]
//
// Communicators and groups:
//   - [Comm.Rank], [Comm.Size], [Comm.Transport]
//   - new communicators: [Comm.Dup], [Comm.DupWith], [Comm.Idup], [Comm.Split], [Comm.SplitNode],
//     [Comm.SplitHardware], [Comm.Create], [Comm.CreateGroup], [Comm.Self]; [Comm.Free]
//   - two groups: [Comm.Intercomm], [Comm.Remote], [Comm.Merge], [Root]
//   - libraries that do not depend on Init: [Open], [Session.Group], [Session.Comm]
//   - processes: [Comm.Spawn], [Comm.Parent]; jobs that connect: [Comm.Listen], [Port.Accept],
//     [Port.Publish], [Comm.Lookup], [Comm.Dial]
//   - values that a library stores: [NewKey], [Key.Set], [Key.Get]
//   - names, hints and comparison: [Comm.SetName], [Comm.Name], [Hint], [Comm.Hints],
//     [Comm.Compare]
//   - grids and graphs of ranks: [Comm.Cart], [Dims], [Cart.Shift], [Cart.Sub]; [Comm.Graph],
//     [Comm.GraphOf]; [Reorder]
//   - limits of time: [Comm.WithContext], [Unfinished]
//   - groups: [Comm.Group], [Group.Incl], [Group.Excl], [Group.Union], [Group.Translate], and other
//     methods of [Group]
//
// Failures of processes:
//   - [Comm.Revoke], [Comm.IsRevoked], [Comm.Shrink], [Comm.Ishrink], [Comm.Agree], [Comm.Iagree],
//     [Comm.FailedRanks], [Comm.AckFailed], [Comm.Epoch]
//   - of windows: [Win.Revoke], [Win.IsRevoked], [Win.FailedRanks]
//   - errors: [ProcFailedError], [RevokedError], [ErrProcFailedPending]
//
// Memory:
//   - [Alloc]
//
// Package comm/pio has files that all ranks read and write, package comm/psync has counters, locks
// and sequential sections, and package comm/commtest runs ranks in tests.
//
// # Errors
//
// Wrong arguments, failed processes and revoked communicators are errors of type [*Error].
// errors.Is compares an error with the variables of this package, such as [ErrTruncate]. No
// argument makes this package panic.
//
// An error in a collective revokes its communicator, so that no rank waits for a rank that has
// returned with an error. A rank on which the collective failed by itself gets its own error; the
// other ranks get [ErrRevoked] with the text of such an error. Wrong arguments have the same
// effect, even if all ranks pass the same wrong ones, because a rank does not know the arguments of
// the others. Ranks that call different collectives, or one collective with different counts or
// roots, get [ErrMismatch], [ErrCount] or [ErrRevoked]: at once if their messages meet, and within
// seconds if all of them wait.
//
// # Buffers in flight
//
// A blocking call owns its buffers until it returns, or, if its error holds an [Unfinished], until
// Wait of the [Unfinished] returns. A nonblocking operation owns its buffers until Wait or Test of
// its request has completed it. The program may read, but not write, the buffer of a send. With the
// tunable check (WEFT_CHECK=1), a program that breaks this rule gets [ErrInUse] if it has changed
// the buffer of a send, or if an operation writes memory that another operation uses. If a program
// is built with -race, the race detector reports conflicting accesses before Wait to the first MiB
// of the buffers of Isend, Irecv and nonblocking collectives.
//
// # Failures
//
// By default the launcher ends the job if a process fails. With gorun -on-failure notify the job
// continues without the failed processes. Then a call that needs a failed process returns
// [ErrProcFailed] with the reason. [Comm.Revoke] makes the calls of the other ranks fail, too.
// [Comm.Shrink] makes a communicator of the live ranks. [Comm.Finalize] waits only for the live
// ranks.
//
// A rank that has called Finalize, or whose function in Main has returned, does not make the calls
// that another rank waits for. So calls that need the rank fail with [ErrFinalized]; see
// [Comm.Finalize]. Agree and Shrink then fail with the same error on all other ranks.
//
// # Implementation
//
// The functions of this package have type parameters. They describe slices as memory with an
// element type, and call internal/mpi:
//
//	your slices ─► elem.View ─► internal/mpi ─► engine          Send, Recv, …
//	                                         └─► coll ─► engine  Bcast, Allreduce, …
package comm
