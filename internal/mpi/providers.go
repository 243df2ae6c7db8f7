package mpi

import (
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric"
	"github.com/weft-hpc/weft/transport/shm"
	"github.com/weft-hpc/weft/transport/tcp"
)

// providers are the transports that a program can use, by the names that
// transport.use knows. Which of them it uses, and in what order, is said there
// and never here.
var providers = map[string]func() transport.Provider{
	"shm":       func() transport.Provider { return shm.New() },
	"tcp":       func() transport.Provider { return tcp.New() },
	"libfabric": libfabric.New,
}
