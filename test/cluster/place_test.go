package cluster

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/test/cluster/run"
)

func TestHello(t *testing.T) {
	b := hosts(t)
	r := b.on("1:2,2", "-np", "3", run.Rank(), "hello").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	t.Log(r.Stdout, r.Stderr)
	t.Logf("%+v", r.Report)
}
