package main

import (
	"bytes"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

// TestDeaths kills one or more ranks, one after another, also rank 0. The other ranks compute the right
// result.
func TestDeaths(t *testing.T) {
	for _, die := range [][]int{{2}, {0}, {3, 0}, {0, 1, 2}} {
		var mu sync.Mutex
		var out bytes.Buffer
		commtest.Run(t, 4, func(c *comm.Comm) error {
			o := options{rounds: 9, terms: 1000, die: -1}
			for i, r := range die {
				if r == c.Rank() {
					o.die, o.at, o.kill = r, 2*i, func() { commtest.Kill(c) }
				}
			}
			var own bytes.Buffer
			err := survive(c, &o, &own)
			mu.Lock()
			defer mu.Unlock()
			out.Write(own.Bytes())
			return err
		}, commtest.WithNotify())
		require.Regexp(t, `(?m)fail.*: 3 of 4 ranks go on$`, out.String())
		require.Regexp(t, `(?m)^pi is about 3\.1415926.*, 9 rounds, [1-3] of 4 ranks$`, out.String())
	}
}
