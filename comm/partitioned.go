package comm

import (
	"iter"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi"
)

// PartSend is a send whose buffer has partitions that become ready one by one: a partitioned send
// of MPI (MPI 4.1 §4). Several goroutines may fill the partitions and call [PartSend.Ready]. The
// operation is persistent: the program may start it many times. [PsendInit] makes a PartSend. The
// receiver uses a [PartRecv].
//
//	sender                              receiver
//	p, _ := comm.PsendInit(…)           q, _ := comm.PrecvInit(…)
//	for range steps {                   for range steps {
//		p.Start()                           q.Start()
//		…  // goroutines: fill i,           …  // q.Arrived(i): partition i can be read
//		   // p.Ready(i)                    q.Wait()
//		p.Wait()                        }
//	}
type PartSend mpi.PartSend

// PartRecv is a receive whose buffer has partitions that arrive one by one. [PrecvInit] makes a
// PartRecv. Several goroutines may call [PartRecv.Arrived].
type PartRecv mpi.PartRecv

func (p *PartSend) in() *mpi.PartSend { return (*mpi.PartSend)(p) }
func (p *PartRecv) in() *mpi.PartRecv { return (*mpi.PartRecv)(p) }

// PsendInit makes a partitioned send of buf to rank dest (MPI_Psend_init). buf has parts partitions
// of len(buf) ÷ parts elements. PsendInit is local. The partitioned sends and receives between two
// ranks with the same tag match in the order in which the program made them. A partitioned send
// matches only a partitioned receive. If dest is ProcNull, the operation sends nothing.
//
// Errors: ErrRank, ErrTag, ErrType, ErrClosed; ErrCount if parts is less than 1 or does not divide
// len(buf); ErrArg if all partitioned sends that the program has made on this rank of the
// communicator have more than [MaxTag] messages together: one per partition or, for long buffers,
// one per send.
func PsendInit[T any](c *Comm, buf []T, parts, dest, tag int) (*PartSend, error) {
	p, err := c.in().PsendInit(elem.View(buf), parts, dest, tag)
	return (*PartSend)(p), err
}

// Start begins the operation, with no partition ready (MPI_Start). It does not block. Errors:
// ErrArg if the operation is active, nil or freed; ErrClosed.
func (p *PartSend) Start() error { return p.in().Start() }

// Ready marks partition i as ready: it holds its data, and may leave (MPI_Pready). Ready does not
// block, and does not allocate. The program must not change the partition until Wait returns.
// Errors: ErrArg if there is no partition i, if the partition is ready already, or if the operation
// is not active; with the tunable check, ErrInUse if a pending operation writes the partition. Wait
// returns the errors of the transfer, and with the tunable check ErrInUse if the partition has
// changed since Ready.
func (p *PartSend) Ready(i int) error { return p.in().Ready(i) }

// ReadyRange calls [PartSend.Ready] for the partitions i with from ≤ i < to (MPI_Pready_range,
// whose range includes its upper bound). It returns at the first error.
func (p *PartSend) ReadyRange(from, to int) error {
	for i := from; i < to; i++ {
		if err := p.Ready(i); err != nil {
			return err
		}
	}
	return nil
}

// ReadyList calls [PartSend.Ready] for the partitions in list (MPI_Pready_list). It returns at the
// first error.
func (p *PartSend) ReadyList(list ...int) error {
	for _, i := range list {
		if err := p.Ready(i); err != nil {
			return err
		}
	}
	return nil
}

// Wait blocks until all partitions are ready and the program may reuse buf (MPI_Wait). Other
// goroutines may make partitions ready meanwhile. If the operation is not active, Wait returns at
// once.
//
// Errors: those of [Send]. If the communicator's context ends first, the operation stays active,
// and the program may call Wait again.
func (p *PartSend) Wait() error { return p.in().Wait() }

// Test is [PartSend.Wait], except that it does not block: it reports whether the operation is
// complete (MPI_Test).
func (p *PartSend) Test() (bool, error) { return p.in().Test() }

// Free frees the operation, which must not be active (MPI_Request_free). It is local.
func (p *PartSend) Free() error { return p.in().Free() }

// PrecvInit makes a partitioned receive into buf from rank source (MPI_Precv_init). buf has parts
// partitions of len(buf) ÷ parts elements. The sender's buffer has as many elements as buf, in any
// number of partitions. source and tag are those of one sender: AnySource and AnyTag are not
// possible. If source is ProcNull, buf does not change, and all partitions count as arrived after
// Start. PrecvInit is local. Errors: those of [PsendInit].
func PrecvInit[T any](c *Comm, buf []T, parts, source, tag int) (*PartRecv, error) {
	p, err := c.in().PrecvInit(elem.View(buf), parts, source, tag)
	return (*PartRecv)(p), err
}

// Start begins the operation (MPI_Start). It does not block. Errors: ErrArg if the operation is
// active, nil or freed; ErrClosed.
func (p *PartRecv) Start() error { return p.in().Start() }

// Arrived reports whether partition i has arrived, so that the program may read it (MPI_Parrived).
// It does not block, and does not allocate. Errors: those of [Recv] for the messages of the
// partition; ErrCount if the sender's buffer has another length; ErrArg if there is no partition i,
// or the operation is not active.
func (p *PartRecv) Arrived(i int) (bool, error) { return p.in().Arrived(i) }

// All returns the partitions in the order in which they arrive:
//
//	for i, err := range p.All() { … }
//
// The loop blocks until a partition has arrived, and ends after the last one. If an error occurs,
// All yields the index -1 and the error, and the loop ends. The loop does not end the operation:
// [PartRecv.Wait] does.
func (p *PartRecv) All() iter.Seq2[int, error] { return p.in().All() }

// Wait blocks until all partitions have arrived (MPI_Wait). Errors: those of [Recv]; ErrCount if
// the sender's buffer has another length. The sender's operation then completes without an error,
// unless it has more than 2^20 messages. If the communicator's context ends first, the operation
// stays active, and the program may call Wait again.
func (p *PartRecv) Wait() error { return p.in().Wait() }

// Test is [PartRecv.Wait], except that it does not block: it reports whether the operation is
// complete (MPI_Test).
func (p *PartRecv) Test() (bool, error) { return p.in().Test() }

// Free frees the operation, which must not be active (MPI_Request_free). It is local.
func (p *PartRecv) Free() error { return p.in().Free() }
