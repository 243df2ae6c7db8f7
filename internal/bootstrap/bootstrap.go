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
)

// World is what a process knows of its job.
type World struct {
	Rank, Size int
	AppNum     int      // which part of an MPMD job this rank belongs to
	Nodes      []int    // Nodes[r] is the number of the host that rank r runs on, dense from 0
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
	// its number in Nodes, have in common; nil: none. Who opens the transports
	// closes it.
	Memory *os.File

	// News is where gorun writes which ranks have failed (wire.AppendNews), for
	// this rank alone; nil: it ends the job at the first that does. Who reads it
	// closes it.
	News *os.File

	// Epoch counts how often gorun has started the whole job anew; 0 is the first
	// time.
	Epoch int

	KVS KVS // never nil; of a world of one it is local
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
	// Abort asks the launcher to end the job with this exit code. It returns
	// where the launcher cannot; the caller exits anyway.
	Abort(code int, reason string) error
}
