package mpi

import (
	"github.com/weft-hpc/weft/internal/mpi/inspect"
	"github.com/weft-hpc/weft/internal/wire"
)

// inspected returns what the inspector needs from this rank.
func (j *job) inspected() *inspect.Rank {
	return &inspect.Rank{Engine: j.eng, Find: j.findComm, Comms: j.openComms, Connections: j.inspectedConnections, Final: finalID, MaxSeq: seqMask}
}

// inspectedConnections returns what the inspector needs from the connections of this process.
func (j *job) inspectedConnections() (list []inspect.Connection) {
	j.connections.mu.Lock()
	defer j.connections.mu.Unlock()
	for x := range j.connections.open {
		list = append(list, inspect.Connection{Engine: x.eng, Name: func(id uint64) string {
			switch c, ok := x.findComm(id); {
			case !ok || id == worldID || id == finalID || id == connectedID:
				return "connection"
			default:
				return c.Name + " of a connection"
			}
		}})
	}
	return list
}

// findComm returns the open communicator with the id.
func (j *job) findComm(id uint64) (c inspect.Comm, ok bool) {
	s := j.stall.find(id)
	if s == nil {
		return inspect.Comm{}, false
	}
	return inspect.Comm{Name: s.name(), Seq: s.seq.Load() & seqMask}, true
}

// openComms returns the open communicators, with the number of the last collective that this rank has
// started in each.
func (j *job) openComms() (list []wire.RankComm) {
	j.stall.mu.Lock()
	defer j.stall.mu.Unlock()
	for id, s := range j.stall.states {
		list = append(list, wire.RankComm{ID: id, Seq: s.seq.Load() & seqMask})
	}
	return list
}
