//go:build linux

package procs

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// fetched reads a file of a rank by Fetch messages, and returns what it contains, and the reason if it
// cannot be read.
func fetched(t *testing.T, h *Host, emitted chan proto.Message, rank, file int) (data, failed string) {
	t.Helper()
	for {
		h.Do(proto.Fetch{Rank: rank, File: file, Offset: int64(len(data))})
		p := await[proto.Part](t, emitted)
		require.Equal(t, []int{rank, file}, []int{p.Rank, p.File})
		require.LessOrEqual(t, len(p.Data), proto.MaxPart)
		if p.Failed {
			return data, string(p.Data)
		}
		data += string(p.Data)
		if len(p.Data) < proto.MaxPart {
			return data, ""
		}
	}
}

// TestRankFiles starts ranks that write to their files, which the host then returns: also what a rank has
// written that was killed, what a spawned group has written, a file of exactly the length of a Part, and
// an empty one. A file can be read once. Others must be refused.
func TestRankFiles(t *testing.T) {
	script := fmt.Sprintf(`a=/proc/self/fd/%d b=/proc/self/fd/%d; case $PMI_RANK in
0) head -c 200000 /dev/zero | tr '\0' x >$a; head -c 65536 /dev/zero | tr '\0' y >$b;;
1) echo half >$a; kill -9 $$;;
esac`, childFiles, childFiles+1)
	h, emitted := rankFileHost(t, script, 2)
	h.Do(proto.Start{})
	require.Len(t, await[proto.Started](t, emitted).Ranks, 2)
	await[proto.Ended](t, emitted)

	group := testGroup(t, 1, 2, 1, fmt.Sprintf("echo spawned >/proc/self/fd/%d", childFiles))
	group.RankFiles = []proto.RankFile{{Name: "a", Large: true}}
	h.Do(group)
	await[proto.Prepared](t, emitted)
	h.Do(proto.Start{Group: 1})
	await[proto.Ended](t, emitted)

	for _, file := range []struct {
		rank, file int
		data       string
	}{{2, 0, "spawned\n"}, {0, 0, strings.Repeat("x", 200000)}, {0, 1, strings.Repeat("y", 65536)}, {1, 0, "half\n"}, {1, 1, ""}} {
		data, failed := fetched(t, h, emitted, file.rank, file.file)
		require.Empty(t, failed)
		require.True(t, file.data == data, "%d bytes of rank %d", len(data), file.rank)
	}
	for _, at := range [][2]int{{0, 0}, {2, 1}, {7, 0}, {-1, -1}} {
		_, failed := fetched(t, h, emitted, at[0], at[1])
		require.Equal(t, "the file is closed, or never existed", failed)
	}
}

// rankFileHost returns a Host whose group 0 has np ranks with two files each.
func rankFileHost(t *testing.T, script string, np int) (*Host, chan proto.Message) {
	t.Helper()
	emitted := make(chan proto.Message, 1000)
	h, err := NewHost(Config{
		Host: "node1", Own: true, Watchdog: &Watchdog{}, Stored: func(proto.FilePart) {},
		Emit:   func(m proto.Message) { emitted <- m },
		Output: func(proto.Output) error { return nil },
	})
	require.NoError(t, err)
	t.Cleanup(h.Close)
	m := testPrepare(t, np, script)
	m.RankFiles = []proto.RankFile{{Name: "a"}, {Name: "b", Large: true}}
	h.Do(m)
	require.Equal(t, proto.Prepared{}, await[proto.Prepared](t, emitted))
	return h, emitted
}

// TestRankFilesAreClosed: Close must close the files, also those that nobody has read and those of ranks
// that were killed by it, and a Fetch after it must have no effect.
func TestRankFilesAreClosed(t *testing.T) {
	before := openRankFiles(t)
	h, emitted := rankFileHost(t, "exec sleep 1000", 1)
	h.Do(proto.Start{})
	await[proto.Started](t, emitted)
	require.Len(t, openRankFiles(t), len(before)+2)
	h.Do(proto.Fetch{Offset: -1}) // an offset that no file has
	require.True(t, await[proto.Part](t, emitted).Failed)
	require.Len(t, openRankFiles(t), len(before)+1)
	h.Close()
	require.Len(t, openRankFiles(t), len(before))
	h.Do(proto.Fetch{})
	require.Len(t, openRankFiles(t), len(before))
}

// TestFetchOfTwo: each request is answered by the function that came with it, also if it comes while another one is
// answered.
func TestFetchOfTwo(t *testing.T) {
	s := new(rankFiles)
	defer s.close()
	first, release, second := make(chan int), make(chan struct{}), make(chan int, 1)
	s.fetch(proto.Fetch{Rank: 1}, func(m proto.Message) {
		first <- m.(proto.Part).Rank
		<-release
	})
	require.Equal(t, 1, <-first)
	s.fetch(proto.Fetch{Rank: 2}, func(m proto.Message) { second <- m.(proto.Part).Rank })
	close(release)
	select {
	case rank := <-second:
		require.Equal(t, 2, rank)
	case <-first:
		t.Fatal("the first function was called again")
	}
}

// openRankFiles returns the files of ranks that this process has open.
func openRankFiles(t *testing.T) (list []string) {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && (strings.Contains(to, "weft-a") || strings.Contains(to, "weft-b")) {
			list = append(list, to)
		}
	}
	return list
}

// TestUnnamedFile: the file must have no name, and must be readable and writable, in memory and on disk. Only a
// large one needs the directory for temporary files.
func TestUnnamedFile(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	for _, large := range []bool{false, true} {
		f, err := UnnamedFile("x", large)
		require.NoError(t, err)
		_, err = f.WriteString("text")
		require.NoError(t, err)
		b := []byte("....")
		_, err = f.ReadAt(b, 0)
		require.NoError(t, err)
		require.Equal(t, "text", string(b))
		var st unix.Stat_t
		require.NoError(t, unix.Fstat(int(f.Fd()), &st))
		require.Zero(t, st.Nlink)
		flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0)
		require.NoError(t, err)
		require.NotZero(t, flags&unix.FD_CLOEXEC)
		require.NoError(t, f.Close())
	}
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
	t.Setenv("TMPDIR", dir+"/missing")
	_, err = UnnamedFile("x", true)
	require.ErrorIs(t, err, os.ErrNotExist)
	f, err := UnnamedFile("x", false)
	memory, missing := sys.MemoryFile("x")
	if missing != nil { // then the file is on the disk, too
		require.ErrorIs(t, missing, sys.ErrNoMemoryFiles)
		require.ErrorIs(t, err, os.ErrNotExist)
		return
	}
	require.NoError(t, err)
	require.NoError(t, errors.Join(f.Close(), memory.Close()))
}
