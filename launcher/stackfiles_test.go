package launcher

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"

	"github.com/weft-hpc/weft/launcher/internal/proto"
)

func TestStackFilesReplaceLinks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "stacks")
	victim := filepath.Join(t.TempDir(), "victim")
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, os.WriteFile(victim, []byte("precious"), 0o600))
	require.NoError(t, os.Symlink(victim, filepath.Join(dir, "1.stacks")))
	s := newStackFiles(dir, 2, nil)
	for rank := range 2 {
		s.add(proto.Stacks{Rank: rank, Data: []byte("goroutine 1")})
	}
	require.Equal(t, "stacks of all goroutines: "+filepath.Join(dir, "RANK.stacks"), s.finish())
	for name, want := range map[string]string{victim: "precious", filepath.Join(dir, "0.stacks"): "goroutine 1", filepath.Join(dir, "1.stacks"): "goroutine 1"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, want, string(text), name)
	}
}

func TestStackFilesOfNoRank(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	require.Equal(t, "no rank has sent its stacks", newStackFiles("", 2, nil).finish())
	s := newStackFiles("", 2, nil)
	s.add(proto.Stacks{Data: []byte("goroutine 1")})
	s.abandon()
	<-s.done
	list, err := os.ReadDir(os.Getenv("TMPDIR"))
	require.NoError(t, err)
	require.Empty(t, list, "gorun removes a directory that it does not name")
}

// TestStackFilesAreBounded: while loop does not run, as if the file server did not answer, 300
// ranks send stacks of 1 MiB each. add must keep only stacksRoom bytes of them, and the line of
// finish must have the number of ranks whose stacks are missing.
func TestStackFilesAreBounded(t *testing.T) {
	const ranks, size = 300, 1 << 20
	dir := t.TempDir()
	s := &stackFiles{dir: dir, in: make(chan proto.Stacks, ranks), room: semaphore.NewWeighted(stacksRoom), time: stacksTime, done: make(chan struct{})}
	data := make([]byte, size)
	for rank := range ranks {
		s.add(proto.Stacks{Rank: rank, Data: data})
	}
	require.Len(t, s.in, stacksRoom/size)
	require.Equal(t, ranks-stacksRoom/size, s.lost)
	for len(s.in) > 1 { // drop all but one, so that the test need not write so many files
		<-s.in
	}
	go s.loop() // ends when finish has closed the channel
	require.Equal(t, "stacks of all goroutines: "+dir+"/RANK.stacks, without 236 ranks, because "+dir+" takes them too slowly", s.finish())
}

// TestStackFilesThatTakeTooLong: finish waits only for 1 ns, and of two files only one is written
// then. finish must return that the stacks could not be written. loop must then write no more
// files, and must remove a temporary directory.
func TestStackFilesThatTakeTooLong(t *testing.T) {
	for name, dir := range map[string]string{"temporary": "", "of the user": filepath.Join(t.TempDir(), "stacks")} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			s := &stackFiles{dir: dir, temp: dir == "", in: make(chan proto.Stacks, 2), room: semaphore.NewWeighted(stacksRoom), time: 1, done: make(chan struct{})}
			require.NoError(t, s.write(proto.Stacks{Data: []byte("goroutine 1")}))
			s.add(proto.Stacks{Rank: 1, Data: []byte("goroutine 1")})
			require.Regexp(t, "^the stacks could not be written: .* did not take them within 1ns$", s.finish())
			s.loop() // as if the file server answered now
			list, err := os.ReadDir(os.Getenv("TMPDIR"))
			require.NoError(t, err)
			require.Empty(t, list)
			require.NoFileExists(t, filepath.Join(s.dir, "1.stacks"))
		})
	}
}

// TestStackFilesOfAnInspectionThatGaveUp: an inspection no longer waits for its files, and a later
// inspection has written a file of the same name. When the write of the first inspection continues,
// it must not replace that file, and must leave no other file.
func TestStackFilesOfAnInspectionThatGaveUp(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "1.stacks")
	require.NoError(t, os.WriteFile(name, []byte("later"), 0o600))
	s := &stackFiles{dir: dir}
	s.closed.Store(true) // as finish does when its time is over while loop is in write
	require.NoError(t, s.write(proto.Stacks{Rank: 1, Data: []byte("earlier")}))
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, "later", string(text))
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, list, 1)
}

// TestStacksThatComeLate: the first round of an inspection has the number 4, and its current round
// the number 5. Stacks with the number 4 must be written, and those of an earlier inspection, with
// the number 3, must not.
func TestStacksThatComeLate(t *testing.T) {
	dir := t.TempDir()
	r := newRun(&session{}, "id")
	r.inspecting = &inspection{n: 5, first: 4, files: map[string]*stackFiles{dir: newStackFiles(dir, 2, nil)}}
	r.stacksOf(proto.Stacks{N: 3, Rank: 0, Data: []byte("old")})
	r.stacksOf(proto.Stacks{N: 4, Rank: 1, Data: []byte("goroutine 1")})
	require.Equal(t, "stacks of all goroutines: "+dir+"/RANK.stacks", r.inspecting.files[dir].finish())
	list, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Join(dir, "1.stacks")}, list)
}

// TestRequestsAtTheEndOfARun: when the run ends, there are three requests: one whose inspection is
// under way, one whose answer is in the mailbox because its stacks were just written, and one that
// is itself in the mailbox. dropRequests must answer all three, and the mailbox must then refuse
// further requests.
func TestRequestsAtTheEndOfARun(t *testing.T) {
	r := newRun(&session{}, "id")
	var got [][]string
	then := func(a inspected) { got = append(got, a.lines) }
	r.inspecting = &inspection{requests: []inspectRequest{{then: then}}, files: map[string]*stackFiles{"": newStackFiles("", 1, nil)}}
	r.mail.post(filesWritten{[]inspectRequest{{then: then}}, inspected{lines: []string{"rank 0: has ended"}}})
	r.mail.post(inspectRequest{then: then})
	r.dropRequests()
	require.Equal(t, [][]string{{"rank 0: has ended"}, {jobEnded}, {jobEnded}}, got)
	require.False(t, r.mail.post(inspectRequest{then: then}), "its caller learns at once that there will be no answer")
}
