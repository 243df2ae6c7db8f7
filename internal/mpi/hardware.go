package mpi

import (
	"fmt"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi/calls"
	"github.com/weft-hpc/weft/internal/sys"
)

// Hardware is the type behind comm.Hardware: a kind of hardware that ranks share.
type Hardware int

// The kinds of hardware, from wide to narrow.
const (
	Host Hardware = iota
	Package
	NUMA
	L3Cache
	Core
	hardwareKinds

	Narrower Hardware = -1 // the first kind of which the ranks of the communicator use several
)

// place holds, for each kind, the number of the piece of hardware that a rank uses. Numbers of kind
// Host are unique in the job, and numbers of the other kinds within a host. -1: the rank uses
// several pieces.
type place [hardwareKinds]int32

// color returns the colour of the rank in a split by the kind k.
func (p *place) color(k Hardware) int {
	if p[k] < 0 {
		return Undefined
	}
	if k == Host {
		return int(p[Host])
	}
	return int(p[Host])<<32 | int(p[k])
}

// ownPlace returns the place of the caller. If only its host is asked for, it reads no files.
func (s *state) ownPlace(kind Hardware) (p place) {
	p[Host] = int32(s.job.world.HostOf[s.job.world.Rank])
	if kind == Host {
		return p
	}
	for k, n := range sys.OwnDomains() {
		p[Package+Hardware(k)] = n
	}
	return p
}

// SplitHardware implements comm.Comm.SplitHardware, which documents the call.
func (c *Comm) SplitHardware(kind Hardware, key int) (*Comm, error) {
	const name = "SplitHardware"
	s, err := c.live()
	if err != nil {
		return nil, c.fail(name, noRank, noRank, err)
	}
	if err = s.checkIntra(); err == nil && (kind < Narrower || kind >= hardwareKinds) {
		err = fmt.Errorf("%w: no such kind of hardware", ErrArg)
	}
	if err != nil {
		return nil, c.revoked(name, err)
	}
	own := s.ownPlace(kind)
	if kind != Narrower {
		return c.split(name, calls.Call{What: calls.KindSplitHardware, Root: int(kind)}, own.color(kind), key)
	}
	all := make([]place, c.Size())
	if err := c.Allgather(elem.View([]place{own}), elem.View(all)); err != nil {
		return nil, RenamedTo(err, name)
	}
	color := Undefined
	if kind, ok := narrower(all); ok {
		color = own.color(kind)
	}
	return c.split(name, calls.Call{What: calls.KindSplitHardware, Root: int(hardwareKinds)}, color, key)
}

// narrower returns the widest kind of hardware for which the ranks do not all use the same piece. ok is
// false if there is none.
func narrower(all []place) (kind Hardware, ok bool) {
	for k := Host; k < hardwareKinds; k++ {
		for i := range all {
			if all[i].color(k) != all[0].color(k) {
				return k, true
			}
		}
	}
	return 0, false
}
