package comm

// Job describes the job that this process is part of: what MPI has as attributes of the world (MPI
// 4.1 §9.1), and what launchers give in environment variables. All ranks in it are ranks of the
// world.
type Job struct {
	ID       string // the same on all ranks, and different in other jobs
	Launcher string // "gorun", "pmi", "openmpi", "slurm", "commtest", or "none" for a process without a launcher

	Rank, Size int // of the world
	// The number of this rank among the ranks of its host, in rank order, and the number of ranks
	// there: for example to choose a device.
	LocalRank, LocalSize int

	App   int // number of the program of this rank, if the job has several (MPI_APPNUM)
	Epoch int // number of restarts of the job; see [Comm.Epoch]
	// Number of ranks that the job's hosts have slots for, if the launcher is gorun; otherwise Size
	// (MPI_UNIVERSE_SIZE).
	Slots int

	// Hosts has the name of each host, by its number, from 0 on. A name that the launcher does not
	// give is empty; that of the own host is always known (MPI_Get_processor_name).
	Hosts  []string
	HostOf []int // the number of the host of each rank

	// StageDir is the directory of the files that gorun has copied to this host (-stage-files), or
	// empty.
	StageDir string
}

// Host returns the name of the host that a rank of the world runs on. It returns "" if the name is
// not known or there is no such rank.
func (j Job) Host(rank int) string {
	if rank < 0 || rank >= len(j.HostOf) {
		return ""
	}
	return j.Hosts[j.HostOf[rank]]
}

// Job describes the job. The caller owns the slices. For a nil communicator, Job returns the zero
// Job. Job is local.
func (c *Comm) Job() Job { return Job(c.in().Job()) }
