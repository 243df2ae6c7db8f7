// Package setup is how this module's own tests and tools start a job otherwise
// than a launcher does: they say what comm.Init would find out.
package setup

import (
	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/transport"
)

// Setup replaces what Init finds out by itself; a nil field replaces nothing.
type Setup struct {
	World     *bootstrap.World
	Providers []transport.Provider          // in order of preference, in place of transport.use
	Engine    func(*engine.Engine)          // is given the engine before the world's first message
	Exit      func(code int, reason string) // in place of os.Exit in Abort
}
