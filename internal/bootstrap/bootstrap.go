// Package bootstrap answers, for a starting process: which rank am I, how many
// are we, where are the others, and what was I told to use.
//
//	open.go     decides which way it is, and refuses what is none
//	gorun.go    gorun's own job card (card.go), and PMI-1 beside it
//	pmi_open.go PMI-1: mpiexec.hydra, srun --mpi=pmi2 (pmi.go)
//	place.go    mpirun of Open MPI and plain srun, which only number their ranks:
//	            these meet at rank 0 (rendezvous.go, hub.go, spoke.go)
//
// A process that nobody started is a world of one.
package bootstrap

import (
	"context"
	"os"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/internal/wire"
)

// World is what a process knows of its job.
type World struct {
	Rank, Size int
	AppNum     int      // which part of an MPMD job this rank belongs to
	HostOf     []int    // HostOf[r] is the number of the host that rank r runs on, dense from 0
	Cores      int      // hardware threads of this host that the job's ranks share; 0: nobody knows
	JobID      string   // the same in every rank, different between jobs
	Secret     [32]byte // the same in every rank, known to nobody else
	Launcher   string   // "gorun", "pmi", "openmpi", "slurm", or "none"
	Params     *params.Set

	// Where gorun laid out the tcp addresses. A symmetric layout names them by
	// arithmetic: the ranks of node n listen on Hosts[n], an IP address, in the
	// order of their numbers on the ports from BasePort on. Otherwise Addrs[i] is
	// rank i's "host:port". All are empty where the ranks must find their own
	// addresses and exchange them through KVS.
	Hosts    []string
	BasePort int
	Addrs    []string
	Listener *os.File // this rank's listening socket, already bound; nil: none

	// Memory is a memory file that the ranks of this host, which are those with
	// its number in HostOf, have in common; nil: none. Who opens the transports
	// closes it.
	Memory *os.File

	// News is where gorun writes which ranks have failed (wire.AppendNews), for
	// this rank alone; nil: it ends the job at the first that does. Who reads it
	// closes it.
	News *os.File

	// Inspect is the channel on which gorun asks what this rank does, in frames of
	// wire.AppendInspect. It is nil if gorun does not ask. The code that reads it closes it.
	Inspect *os.File

	// NoMemory is the reason why the launcher could not make Memory on this host; it may have
	// made one on other hosts. Empty: the launcher made Memory here, or makes none on any host.
	NoMemory string

	// Epoch counts how often gorun has started the whole job anew; 0 is the first
	// time.
	Epoch int

	KVS KVS // never nil; of a world of one it is local
}

// Finalize calls KVS.Finalize and reports the rank's account. Of the launchers, only gorun
// gets the account.
func (w *World) Finalize(a wire.Account) error {
	if p, ok := w.KVS.(*pmiClient); ok {
		return p.finalize(&a)
	}
	return w.KVS.Finalize()
}

// Abort is a rank's request to end the job.
type Abort struct {
	Code        int    // the exit code of the job
	Reason      string // "" or a text for people; of the launchers, only gorun gets Reason and Consequence
	Consequence bool   // the reason follows from the failure of another rank
}

// KVS is the launcher's key-value space: what every process put before a fence
// is seen by every get after it. Keys have at most MaxKey bytes, values at most
// MaxValue; neither holds spaces, '=' is allowed in values only.
type KVS interface {
	Put(key, value string) error
	// Fence blocks until every rank is in, or ctx ends; after that error the
	// KVS is of no more use, except to Abort.
	Fence(ctx context.Context) error
	// Get returns what was put, or an error that wraps ErrNoKey.
	Get(key string) (string, error)
	// Finalize tells the launcher that this rank ends well; the last call.
	Finalize() error
	// Abort asks the launcher to end the job. If the launcher cannot do so, Abort returns,
	// and the caller exits anyway.
	Abort(a Abort) error
}
