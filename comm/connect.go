package comm

import (
	"github.com/weft-hpc/weft/internal/mpi"
)

// Port is a port of this job, at which other jobs can connect (MPI 4.1 §11.9.1). [Comm.Listen]
// opens it.
type Port mpi.Port

func (p *Port) in() *mpi.Port { return (*mpi.Port)(p) }

// Listen opens a port on the rank root (MPI_Open_port). The port has an address, a text that the
// program gives to another job, for example by [Port.Publish]. The address contains a secret: any
// process that has the address can connect. Listen is collective over c and blocks.
//
// Errors: if the port cannot be opened, the error of the system on the root, and ErrPort on the
// other ranks; ErrRank; as for all collectives, see [Comm.Barrier].
func (c *Comm) Listen(root int) (*Port, error) {
	p, err := c.in().Listen(root)
	return (*Port)(p), err
}

// Addr returns the address of the port, which begins with "weft:" and has no spaces. For a nil port
// it is empty. Addr is local.
func (p *Port) Addr() string { return p.in().Addr() }

// Accept waits until the ranks of another communicator, as a rule of another job, have called
// [Comm.Dial] with the address of the port, and returns an intercommunicator with them
// (MPI_Comm_accept). c is any communicator in which the port's root has the same rank as in the
// communicator of Listen. Accept is collective over c and blocks. The program may call it several
// times. If several jobs dial at the same time, each call accepts one of them.
//
// The connection lasts until both sides have freed its communicators. Finalize of a rank in the
// connection waits for the other ranks of the connection, but not for ranks of the other job that
// are not in the connection. [Comm.Abort] on a communicator of the connection ends both jobs.
//
// Errors: ErrPort if some ranks of the two sides do not connect within the time of the tunable
// bootstrap.timeout after the roots have met; the context's error (the context of c also ends the
// wait for a Dial); as for all collectives, see [Comm.Barrier]. After ErrPort c remains usable.
func (p *Port) Accept(c *Comm) (*Comm, error) {
	n, err := p.in().Accept(c.in())
	return (*Comm)(n), err
}

// Close closes the port and ends its publication (MPI_Close_port, MPI_Unpublish_name). Connections
// remain. Close is local: the root's call closes the port, and the calls of the other ranks do
// nothing.
func (p *Port) Close() error { return p.in().Close() }

// Publish publishes the port under a name, from 1 to 100 bytes long (MPI_Publish_name). The other
// jobs of the user find it by [Comm.Lookup], if their hosts share the directory that the tunable
// bootstrap.dir names (default: .weft in the home directory). A port has at most one name: a second
// call replaces the name. Publish is local: the root's call publishes the port, and the calls of
// the other ranks do nothing.
//
// Errors: ErrPort if another process has published a port under this name and still listens there,
// or if the directory cannot be written.
func (p *Port) Publish(name string) error { return p.in().Publish(name) }

// Lookup returns the address of the port that a job of this user has published under a name
// (MPI_Lookup_name). Lookup does not wait until a port is published. Lookup is local. Errors:
// ErrPort if there is no such port; ErrClosed.
func (c *Comm) Lookup(name string) (addr string, err error) { return c.in().Lookup(name) }

// Dial connects with the job that has opened the port with this address, and returns an
// intercommunicator with the ranks that have called [Port.Accept] (MPI_Comm_connect). The ranks
// other than root may pass any address. Dial is collective over c and blocks. It waits for an
// Accept for at most the time of the tunable bootstrap.timeout, or until the context of c ends.
//
// Errors: ErrPort if addr is not an address, if no job listens there or accepts in time, or if the
// secret in addr is wrong; ErrRank; the context's error; as for all collectives, see
// [Comm.Barrier]. After ErrPort c remains usable.
func (c *Comm) Dial(root int, addr string) (*Comm, error) {
	n, err := c.in().Dial(root, addr)
	return (*Comm)(n), err
}

// Proc is a program that [Comm.Spawn] starts, in N processes.
type Proc struct {
	// Path is the program: a path, or a name without a slash, for which the launcher searches as it
	// does for the programs of a job. A relative path counts from Dir, if Dir is set.
	Path string
	Args []string // arguments, without the program's own name
	N    int      // number of processes, at least 1
	Dir  string   // working directory; "": that of the job
	Env  []string // variables, NAME=VALUE, in addition to those of the job; only for gorun
	// Soft lists the numbers of processes that the program accepts instead of N: numbers and
	// triples first:last:step, with commas between them (MPI 4.1 §11.8.4). "": only N will do.
	Soft string
	// Info has further hints for the launcher, under the names of MPI 4.1 §11.8.4, such as host. A
	// launcher ignores those that it does not know. docs/gorun.md lists those of gorun.
	Info map[string]string
}

// Spawn starts processes, and returns an intercommunicator with them (MPI_Comm_spawn,
// MPI_Comm_spawn_multiple, MPI 4.1 §11.8). The new processes form a job of their own, whose world
// has the processes of the first program, then those of the second, and so on. In the new
// processes, [Comm.Parent] returns the other side of the intercommunicator. Spawn returns when all
// new processes have called Init. The arguments of ranks other than root have no meaning. Spawn is
// collective over c and blocks.
//
// gorun places the processes on the hosts of the job. If one of them fails, gorun ends the whole
// job, unless -on-failure notify is set. Spawn also works under other launchers with PMI-1, such as
// MPICH's mpiexec.
//
// Errors: ErrSpawn if the launcher has not started the processes, for example because the program
// does not exist, or if it cannot start further processes at all; ErrPort if the processes have not
// connected within the time of the tunable bootstrap.timeout; ErrRank; the context's error; as for
// all collectives, see [Comm.Barrier]. After ErrSpawn or ErrPort c remains usable.
func (c *Comm) Spawn(root int, procs ...Proc) (*Comm, error) {
	list := make([]mpi.Proc, len(procs))
	for i, p := range procs {
		list[i] = mpi.Proc{Path: p.Path, Args: p.Args, Procs: p.N, Dir: p.Dir, Env: p.Env, Soft: p.Soft, Info: p.Info}
	}
	n, err := c.in().Spawn(root, list...)
	return (*Comm)(n), err
}

// Parent returns the intercommunicator with the processes that have started this one by
// [Comm.Spawn], or nil if no process has started it by Spawn, or if Free has ended the connection
// (MPI_Comm_get_parent). Parent is local.
func (c *Comm) Parent() *Comm { return (*Comm)(c.in().Parent()) }
