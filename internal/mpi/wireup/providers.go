package wireup

import (
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric"
	"github.com/weft-hpc/weft/transport/shm"
	"github.com/weft-hpc/weft/transport/tcp"
)

// providers holds the transports that a program can use, by their names in the tunable transport.use.
// That tunable decides which of them a job uses, and in which order.
var providers = map[string]func() transport.Provider{
	"shm":       func() transport.Provider { return shm.New() },
	"tcp":       func() transport.Provider { return tcp.New() },
	"libfabric": libfabric.New,
}
