//go:build !portable

package bootstrap

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/internal/sys"
	"golang.org/x/sys/unix"
)

func TestCardInUnsealedMemory(t *testing.T) {
	f, err := sys.MemoryFile("x")
	require.NoError(t, err)
	defer f.Close()
	fd := int(f.Fd())
	_, err = readCard(fd)
	require.ErrorIs(t, err, errNotCard)
	_, err = f.WriteString("weftjob0{}")
	require.NoError(t, err)
	require.NoError(t, sys.AddSeals(fd, cardSeals))
	_, err = readCard(fd)
	require.ErrorIs(t, err, errNotCard)
}

func TestMemoryFile(t *testing.T) {
	f, err := MemoryFile("job1")
	require.NoError(t, err)
	defer f.Close()
	card, err := testCard().Seal()
	require.NoError(t, err)
	defer card.Close()
	disk, err := os.Create(filepath.Join(t.TempDir(), "f"))
	require.NoError(t, err)
	defer disk.Close()
	named, err := os.CreateTemp("/dev/shm", "weft-test-")
	require.NoError(t, err)
	defer named.Close()
	require.NoError(t, os.Remove(named.Name()))
	unnamed := int(named.Fd()) // a file of tmpfs without a name, which cannot be sealed
	for _, fd := range []int{-1, 0, 1 << 20, int(disk.Fd()), int(card.Fd()), unnamed} {
		require.False(t, memoryFile(fd), "descriptor %d", fd)
	}
	require.True(t, memoryFile(int(f.Fd())))
	require.NoError(t, f.Truncate(1<<20))
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
	require.NoError(t, err)
	require.True(t, memoryFile(int(f.Fd())))
}

// TestMemory checks that the first program of a rank gets the memory file and a later one does not,
// and that open fails if the memory file cannot be written.
func TestMemory(t *testing.T) {
	again := step{stepInit.want, stepInit.reply + " again=1"}
	for _, c := range []struct {
		init   step
		seal   int
		memory bool
		says   string
	}{{stepInit, 0, true, ""}, {again, 0, false, ""}, {stepInit, unix.F_SEAL_WRITE, false, "memory file"}} {
		f, err := MemoryFile("job1")
		require.NoError(t, err)
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, c.seal)
		require.NoError(t, err)
		fd, done := scriptedLauncher(t, c.init, stepEnd)
		card := testCard()
		card.Control, card.Memory = fd, inherit(t, f)
		sealed, err := card.Seal()
		require.NoError(t, err)
		cardFD := inherit(t, sealed)
		w, err := open(t.Context(), env(EnvRank, "1", EnvJobFD, strconv.Itoa(cardFD),
			"PMI_FD", strconv.Itoa(fd), "PMI_RANK", "1", "PMI_SIZE", "4"), io.Discard)
		if c.says != "" {
			require.ErrorContains(t, err, c.says)
			for _, fd := range []int{card.Memory, cardFD, fd} {
				require.NoError(t, unix.Close(fd))
			}
			require.Error(t, <-done)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.memory, w.Memory != nil)
		if c.memory {
			require.Equal(t, card.Memory, int(w.Memory.Fd()))
			flags, err := unix.FcntlInt(w.Memory.Fd(), unix.F_GETFD, 0)
			require.NoError(t, err)
			require.NotZero(t, flags&unix.FD_CLOEXEC)
			require.NoError(t, w.Memory.Close())
		}
		_, err = unix.FcntlInt(uintptr(card.Memory), unix.F_GETFD, 0)
		require.ErrorIs(t, err, unix.EBADF)
		require.NoError(t, w.KVS.Finalize())
		require.NoError(t, <-done)
	}
}
