// Package bootstrap finds out, for a process that starts, its rank, the number of ranks, the host of
// each rank, and the values of the parameters (package params).
//
//	open.go     chooses the launcher, and returns an error if it is not supported
//	gorun.go    gorun: its job card (card.go), and PMI-1 in addition
//	pmi_open.go PMI-1: mpiexec.hydra, srun --mpi=pmi2 (pmi.go)
//	spawn.go    ranks of gorun and PMI-1 start further processes, and publish services
//	place.go    Open MPI's mpirun and plain srun, which only number their ranks:
//	            the ranks find rank 0 by a rendezvous (rendezvous.go, hub.go, spoke.go)
//	port.go     processes of different jobs meet at a port
//
// A process that no launcher has started is a world of one: a job with one rank.
package bootstrap

import (
	"context"
	"os"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/internal/wire"
)

// World describes a job to one of its processes.
type World struct {
	Rank, Size int
	AppNum     int      // number of the program of an MPMD job that this rank runs
	AppOf      []int    // the same number for each rank; nil: not known
	Names      []string // the host name of each host, by its number; empty: not known
	Slots      int      // number of slots of the job's hosts (MPI_UNIVERSE_SIZE); 0: not known
	HostOf     []int    // HostOf[r] is the number of the host of rank r; hosts are numbered from 0 without gaps
	Cores      int      // hardware threads of this host that the job's ranks share; 0: unknown
	JobID      string   // the same in every rank, and different in other jobs
	Secret     [32]byte // the same in every rank, and unknown to other processes
	Launcher   string   // "gorun", "pmi", "openmpi", "slurm", or "none"
	Params     *params.Set

	// The TCP addresses on which the ranks listen, if gorun has assigned them. If BasePort is not 0,
	// the ranks of host n listen on Hosts[n], an IP address, and on the ports from BasePort on, in
	// the order of their numbers. Otherwise Addrs[i] is rank i's "host:port". If all three are
	// empty, the ranks must find their own addresses and exchange them through KVS.
	Hosts    []string
	BasePort int
	Addrs    []string
	Listener *os.File // this rank's bound and listening socket; nil: none

	// Memory is a memory file (memfd_create(2)) that the ranks of this host share, that is, the
	// ranks with the same number in HostOf; nil: none. The code that opens the transports closes it.
	Memory *os.File

	// Failures is the channel on which gorun reports failed ranks to this rank
	// (wire.AppendFailures). It is nil if gorun ends the job at the first failure, or if the
	// launcher is not gorun. The code that reads it closes it.
	Failures *os.File

	// Inspect is the channel on which gorun asks what this rank does, and the rank answers, in
	// frames of wire.AppendInspect. It is nil if the launcher is not gorun. The code that reads it
	// closes it.
	Inspect *os.File

	// Record is a memory file for the records of the ranks of this host (package record), which gorun reads:
	// one for each rank, in their order. Their rings hold 1<<RecordBits events. Record is nil if there is none. The code that opens the
	// record closes the file.
	Record     *os.File
	RecordBits int
	// Files are the files that gorun reads after this rank has ended, by name. They are open for
	// writing, and a program that ran in this rank before may have written to them. The code that
	// writes them closes them. The names of profiles are those of wire.ProfileKinds.
	Files map[string]*os.File

	// NoMemory is the reason why the launcher could not make Memory on this host; it may have
	// made one on other hosts. Empty: the launcher made Memory here, or makes none on any host.
	NoMemory string

	// Epoch is the number of times that gorun has restarted the whole job; 0 at the first start.
	Epoch int

	// Spawned: a rank of another World has started the ranks of this World by Spawn. KVS has the
	// pairs that it has passed.
	Spawned bool

	KVS KVS // never nil; local in a world of one
}

// Finalize does what KVS.Finalize does. If the launcher is gorun, Finalize also reports a to it:
// what the rank has sent and received, and how long it has waited.
func (w *World) Finalize(a wire.Account) error {
	if p, ok := w.KVS.(*pmiClient); ok {
		return p.finalize(&a)
	}
	return w.KVS.Finalize()
}

// Pause tells the launcher that the process may end from now on. Until Resume, the caller may use only
// Abort of KVS.
func (w *World) Pause(a wire.Account) error {
	if p, ok := w.KVS.(*pmiClient); ok && p.gorun {
		p.mu.Lock()
		p.pausing = true
		p.mu.Unlock()
	}
	return w.Finalize(a)
}

// Resume ends what Pause has begun. A launcher other than gorun does not support it; then the launcher
// does not notice if the process ends too early, and KVS stays unusable.
func (w *World) Resume(ctx context.Context) error {
	if p, ok := w.KVS.(*pmiClient); ok && p.gorun {
		return p.rejoin(ctx)
	}
	return nil
}

// Abort is a rank's request to end the job.
type Abort struct {
	Code        int    // the exit code of the job
	Reason      string // text for the user, or ""; PMI-1 launchers other than gorun do not get it
	Consequence bool   // the rank aborts because another rank has failed; only gorun gets this
}

// LocalKVS is a KVS that says whether Get sends nothing, because each fence brings all pairs to each rank.
type LocalKVS interface{ Local() bool }

// KVS is the key-value space of the job: a Get after a fence sees all pairs that all processes have
// put before the fence. Keys have at most MaxKey bytes, values at most MaxValue. Neither contains
// spaces; only values may contain '='.
type KVS interface {
	Put(key, value string) error
	// Fence blocks until every rank has called it, or ctx ends. If Fence returns an error, the caller
	// may use only Abort afterwards.
	Fence(ctx context.Context) error
	// Get returns the value that was put under key. If there is none, the error wraps ErrNoKey.
	Get(key string) (string, error)
	// Finalize reports to the launcher that this rank ends in good order. It is the last call.
	Finalize() error
	// Abort asks the launcher to end the job, or the other ranks if they have found each other by a
	// rendezvous. In a world of one it does nothing. When Abort returns, the caller exits, even if
	// Abort has returned an error.
	Abort(a Abort) error
}
