package comm

// Intercomm makes an intercommunicator of two groups of processes (MPI_Intercomm_create, MPI 4.1
// §7.6.2). The caller's group, the local group, has the ranks of c. The other group, the remote
// group, has the ranks of another communicator, on which these ranks call Intercomm at the same
// time. The groups have no common process. Each group has a leader: the rank leader of c, which is
// the same on all ranks of the group. Both leaders are ranks of the communicator peer, where
// remoteLeader is the rank of the other leader. On ranks that are not the leader, peer and
// remoteLeader have no meaning. tag is from 0 to 2^30-1 and the same on both leaders. If two calls
// on peer have the same leaders at the same time, their tags must differ. These tags are
// independent of the tags of messages.
//
// The calls of an intercommunicator:
//
//   - Rank, Size and Group are those of the local group; [Comm.Remote] returns the remote one.
//   - A message goes to a rank of the remote group, and a receive names a rank of the remote group.
//   - In a rooted collective, such as [Bcast] or [Gather], the root passes [Root] as the argument
//     root, and the other ranks of its group pass ProcNull. The ranks of the other group pass the
//     root's rank; if one of them passes ProcNull, the ranks get ErrMismatch or ErrRevoked. Data goes
//     between the root and all ranks of the other group, and buffers have a block for each of these
//     ranks. Buffers and views that a rank does not need, for its role, have no meaning and may be zero.
//   - In the other collectives, each group gets what the other group sends. A buffer or list with a
//     block for each rank has one for each rank of the remote group. [Allreduce] returns the
//     reduction of the remote group's operands. [ReduceScatter] and [ReduceScatterBlock] scatter
//     that reduction over the local group, and their counts are those of the local group.
//   - [Comm.Barrier] and Agree wait for the ranks of both groups.
//   - [Comm.Dup], [Comm.Split], [Comm.Create] and [Comm.Shrink] make intercommunicators of ranks of
//     both groups. If no rank of the other group passes the colour of a rank to Split, or a group
//     to Create, the rank gets nil.
//   - Scans, windows, topologies, files, [SparseAlltoall], the collectives of values and those
//     whose names end in Alloc, CreateGroup, SplitHardware and Intercomm return ErrArg.
//
// Intercomm is collective over both groups and blocks. The context of c ends it, also while a leader
// waits for the other one. The context of peer has no effect.
//
// Errors: ErrGroup if the groups have a common process; ErrMismatch if the ranks of c pass different
// leaders; ErrRank, ErrTag or ErrArg for other wrong arguments; as for all collectives, see
// [Comm.Barrier]. An error revokes c. An error on a leader, a wrong argument, and ErrMismatch also
// revoke peer.
func (c *Comm) Intercomm(leader int, peer *Comm, remoteLeader, tag int) (*Comm, error) {
	n, err := c.in().Intercomm(leader, peer.in(), remoteLeader, tag)
	return (*Comm)(n), err
}

// Remote returns the remote group of an intercommunicator (MPI_Comm_remote_group). The size of this
// group is MPI_Comm_remote_size. If c is not an intercommunicator, ok is false
// (MPI_Comm_test_inter). Remote is local.
func (c *Comm) Remote() (g Group, ok bool) {
	r, ok := c.in().Remote()
	return Group(r), ok
}

// Merge makes a communicator of the ranks of both groups of an intercommunicator
// (MPI_Intercomm_merge). The ranks of a group pass the same value of high. The group that passes
// false has the lower ranks. If both groups pass the same value, the order of the groups is not
// defined, but it is the same on all ranks. Merge is collective over both groups and blocks.
//
// Errors: ErrArg if c is not an intercommunicator; ErrMismatch if ranks of a group pass different
// values; as for all collectives, see [Comm.Barrier].
func (c *Comm) Merge(high bool) (*Comm, error) {
	n, err := c.in().Merge(high)
	return (*Comm)(n), err
}
