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

// TestWhoMayAsk checks for which users mayAsk and mayAnswer return true. A gorun answers questions
// of its own user and of root. If root runs it, it answers only root. A process accepts answers of
// its own user and of root. If root runs it, it accepts all answers.
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

// TestAskBesideStoppedJobs: askRanks searches for a job by its id, and so asks all gorun processes.
// It must get the answer of the gorun that runs the job although maxQuestions-1 other gorun
// processes are stopped and never answer. In place of the stopped ones, the test has listeners that
// accept no connection.
func TestAskBesideStoppedJobs(t *testing.T) {
	const pastPIDs = 1 << 23 // larger than the kernel's largest pid, so these names belong to no gorun
	for i := range maxQuestions - 1 {
		// Another process may run this test at the same time, so the names depend on the pid.
		l, err := net.Listen("unix", jobSocket+strconv.Itoa(pastPIDs+os.Getpid()*maxQuestions+i))
		require.NoError(t, err)
		defer l.Close()
	}
	const id = "0123456789abcdef"
	s := &session{watchdog: &procs.Watchdog{}} // a watchdog without a process, which does nothing
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
	lines, err := askRanks(ctx, job.Options{Job: id})
	require.NoError(t, err)
	require.Equal(t, []string{"no rank runs, while it waited for hosts to answer"}, lines)
}
