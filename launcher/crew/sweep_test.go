package crew

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/bootstrap"
)

// TestReapOrphans: a daemon of a rank that ends while the job runs is reaped, and
// somebody else's child is not.
func TestReapOrphans(t *testing.T) {
	defer BecomeReaper()()
	daemon := func(id string) (pid int, hold *os.File) {
		r, hold, err := os.Pipe() // it ends when hold is closed
		require.NoError(t, err)
		defer func() { _ = r.Close() }()
		cmd := exec.Command("sh", "-c", "setsid sh -c 'echo $$; exec >/dev/null 2>&1; read x' <&3 3<&- &")
		cmd.Env, cmd.ExtraFiles = append(os.Environ(), bootstrap.EnvJobID+"="+id), []*os.File{r}
		out, err := cmd.Output()
		require.NoError(t, err)
		pid, err = strconv.Atoi(strings.TrimSpace(string(out)))
		require.NoError(t, err)
		return pid, hold
	}
	ended := func(pid int, hold *os.File) {
		require.NoError(t, hold.Close())
		require.NoError(t, unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil))
	}
	b, known := newBelongs("job", nil), make(map[int]bool)
	ours, hold := daemon("job")
	b.reapOrphans(known)
	require.Equal(t, map[int]bool{ours: true}, known)
	ended(ours, hold)
	other, hold := daemon("other")
	b.reapOrphans(known)
	require.Empty(t, known)
	require.NotContains(t, children(), ours)
	ended(other, hold)
	b.reapOrphans(known)
	require.Contains(t, children(), other)
	reapNow(other)
}
