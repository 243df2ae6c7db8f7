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

// TestAHostIsCutOff cuts a host off the network while its ranks and the ranks of other hosts wait for each
// other. gorun detects that by its heartbeat, and ends the job. Without the heartbeat the ranks would
// wait for a quarter of an hour, until the kernel ends their connections.
func TestAHostIsCutOff(t *testing.T) {
	c := testbed.Up(t, 3)
	for _, cut := range []int{0, 2} { // 0: the host of rank 0
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		program := filepath.Join(bin, "survive")
		cmd := exec.CommandContext(ctx, filepath.Join(bin, "gorun"), "-host", c.Names()[0]+":2,"+c.Names()[1]+":2,"+c.Names()[2]+":2",
			"-ssh", c.SSH(), "-heartbeat", "5s", "-on-failure", "notify", "-np", "6", program, "-rounds", "20000", "-n", "180")
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		require.NoError(t, cmd.Start())
		ended := make(chan error, 1)
		// The goroutine ends when gorun ends, at the latest when ctx ends and gorun is killed.
		go func() { ended <- cmd.Wait() }()
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
