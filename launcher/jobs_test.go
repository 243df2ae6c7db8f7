package launcher

import (
	"context"
	"net"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/launcher/internal/procs"
	"github.com/weft-hpc/weft/launcher/job"
)

// TestWhoMayAsk: a gorun answers its own user and root, also if it is root's.
func TestWhoMayAsk(t *testing.T) {
	const root, alice, bob = 0, 1000, 1001
	require.True(t, mayAsk(alice, alice))
	require.True(t, mayAsk(root, alice))
	require.False(t, mayAsk(bob, alice))
	require.False(t, mayAsk(bob, root))
	require.True(t, mayAnswer(alice, root))
	require.True(t, mayAnswer(root, alice))
	require.False(t, mayAnswer(bob, alice))
}

// TestAskBesideStoppedJobs: gorun processes that are stopped do not keep another one from
// answering. The test's listeners accept no connection, as stopped processes do not.
func TestAskBesideStoppedJobs(t *testing.T) {
	const pastPIDs = 1 << 23 // larger than the kernel's largest pid
	for i := range maxQuestions - 1 {
		l, err := net.Listen("unix", jobSocket+strconv.Itoa(pastPIDs+os.Getpid()*maxQuestions+i)) // another process may run this test, too
		require.NoError(t, err)
		defer l.Close()
	}
	const id = "0123456789abcdef"
	s := &session{watchdog: &procs.Watchdog{}} // it has no process
	r := newRun(s, id)
	s.current.Store(r)
	defer s.listen()()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { // ends with ctx
		for {
			select {
			case <-r.mail.wake:
				for _, m := range r.mail.take() {
					r.handle(m)
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	lines, err := askJob(ctx, job.Options{Job: id})
	require.NoError(t, err)
	require.Equal(t, []string{"no rank runs, while it waited for hosts to answer"}, lines)
}
