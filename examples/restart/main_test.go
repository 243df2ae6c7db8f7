package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

// TestRestart kills a rank in the first run, and then starts a second run, which continues from the saved
// state and has the right result.
func TestRestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pi.state")
	require.NoError(t, os.WriteFile(file, []byte("of another job"), 0o600))
	var out bytes.Buffer
	for epoch := range 2 {
		commtest.Run(t, 3, func(c *comm.Comm) error {
			o := options{rounds: 9, terms: 1000, file: file, die: 1, at: 4, kill: func() { commtest.Kill(c) }}
			var own bytes.Buffer
			err := run(c, &o, &own)
			if c.Rank() == 0 {
				out.Write(own.Bytes())
			}
			if err != nil && epoch == 0 { // the other ranks die too, as if gorun had killed them
				commtest.Kill(c)
				return nil
			}
			return err
		}, commtest.WithEpoch(epoch))
	}
	require.Regexp(t, `^epoch 0: 3 ranks begin after round 0
epoch 1: 3 ranks begin after round [34]
pi is about 3\.1415926.*, 9 rounds, epoch 1
$`, out.String())
	require.NoFileExists(t, file)
}

func TestLoad(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pi.state")
	s, err := load(file)
	require.NoError(t, err)
	require.Zero(t, s)
	require.NoError(t, os.WriteFile(file, []byte("nonsense"), 0o600))
	_, err = load(file)
	require.Error(t, err)
}
