//go:build linux

package examples_test

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/testbed"
)

func init() { hostsDown = testbed.Down }

// TestAHostIsCutOff cuts a host off while its ranks and others wait for each other. gorun detects
// it by its heartbeat. The ranks' own connections would fail only after a quarter of an hour.
func TestAHostIsCutOff(t *testing.T) {
	c := testbed.Up(t, 3)
	for _, cut := range []int{0, 2} { // 0: the host of rank 0
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		program := filepath.Join(bin, "survive")
		cmd := exec.CommandContext(ctx, filepath.Join(bin, "gorun"), "-host", c.Names()[0]+":2,"+c.Names()[1]+":2,"+c.Names()[2]+":2",
			"-ssh", c.SSH(), "-heartbeat", "1s", "-on-failure", "notify", "-np", "6", program, "-rounds", "20000", "-n", "180")
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		require.NoError(t, cmd.Start())
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }() // ends with the command, at the latest when ctx ends
		host := c.Hosts()[cut]
		for len(host.Processes(testbed.Running(program))) < 2 {
			select {
			case err := <-ended:
				t.Fatalf("the job ended before the host was cut off: %v\n%s%s", err, &out, &errs)
			case <-time.After(10 * time.Millisecond):
			}
		}
		host.Cut()
		require.NoError(t, <-ended, "%s%s", &out, &errs)
		require.Regexp(t, `: 4 of 6 ranks go on\npi is about 3\.1415926.*, 20000 rounds, 4 of 6 ranks\n$`, out.String(), errs.String())
		t.Log(out.String(), errs.String())
		host.Join()
		require.Eventually(t, func() bool { return len(host.Processes(testbed.Running(program))) == 0 }, time.Minute, 10*time.Millisecond)
	}
}
