package sys

// Domains holds, by kind of hardware, the number of the piece that contains all hardware threads on
// which this process may run; -1: there is none, or it is not known.
type Domains [DomainKinds]int32

// The kinds of domains, from wide to narrow.
const (
	Package     = iota // a socket
	NUMA               // a NUMA node
	L3Cache            // the hardware threads that share a cache of level 3
	Core               // a physical core
	DomainKinds = iota // number of kinds
)

var noDomains = Domains{-1, -1, -1, -1}
