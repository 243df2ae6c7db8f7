package shm

import (
	"testing"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/transporttest"
)

// TestConformance has ranks that find each other by their addresses.
func TestConformance(t *testing.T) {
	transporttest.Run(t, transporttest.OpenWith(func(testing.TB) (transport.Provider, func(int)) { return New(), nil }))
}
