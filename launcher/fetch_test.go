package launcher

import (
	"errors"
	"io"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// fileHosts answers the Fetches of a fetcher as hosts do, from the contents of files.
type fileHosts struct {
	f     *fetcher
	files map[rankFileKey][]byte
	asked []proto.Fetch // that are not answered yet
	most  int           // largest number of these so far
}

func newFileHosts(files map[rankFileKey][]byte) *fileHosts {
	h := &fileHosts{files: files}
	h.f = newFetcher(func(m proto.Message) { // the fetcher holds its mutex
		h.asked = append(h.asked, m.(proto.Fetch))
		h.most = max(h.most, len(h.asked))
	})
	return h
}

// answer answers the next Fetch. It reports whether there was one.
func (h *fileHosts) answer() bool {
	h.f.mu.Lock()
	if len(h.asked) == 0 {
		h.f.mu.Unlock()
		return false
	}
	m := h.asked[0]
	h.asked = h.asked[1:]
	h.f.mu.Unlock()
	p := proto.Part{Index: m.Index, Rank: m.Rank, File: m.File}
	data, ok := h.files[rankFileKey{m.Rank, m.File}]
	switch {
	case !ok:
		p.Failed, p.Data = true, []byte("no such file")
	case m.Offset < int64(len(data)):
		p.Data = data[m.Offset:min(m.Offset+proto.MaxPart, int64(len(data)))]
	}
	h.f.got(p)
	return true
}

// answering is an io.Reader that makes the hosts answer before each Read.
type answering struct {
	h *fileHosts
	io.Reader
}

func (a answering) Read(p []byte) (int, error) {
	a.h.answer()
	return a.Reader.Read(p)
}

// TestFetcher reads files of several lengths. The fetcher must ask for one part first and for a few in
// advance later, and must return the bytes of each file.
func TestFetcher(t *testing.T) {
	for _, length := range []int{0, 1, proto.MaxPart - 1, proto.MaxPart, proto.MaxPart + 1, 20*proto.MaxPart + 5} {
		want := make([]byte, length)
		for i := range want {
			want[i] = byte(i) ^ byte(i>>8)
		}
		h := newFileHosts(map[rankFileKey][]byte{{3, 1}: want})
		file := h.f.file(7, 3, 1)
		require.Equal(t, []proto.Fetch{{Index: 7, Rank: 3, File: 1}}, h.asked)
		got, err := io.ReadAll(answering{h, iotest.HalfReader(file)})
		require.NoError(t, err)
		require.True(t, slices.Equal(want, got), length)
		require.LessOrEqual(t, h.most, fetchAhead)
		if length > 10*proto.MaxPart {
			require.Equal(t, fetchAhead, h.most)
		}
		file.Close()
		for h.answer() { // parts that come after the end are dropped
		}
		require.Empty(t, h.f.open)
	}
}

// TestFetcherErrors: a file must end with the reason that the host gives, with the loss of its host,
// even if that came before the file was opened, and when the fetcher is stopped. Reads that wait must end,
// too.
func TestFetcherErrors(t *testing.T) {
	h := newFileHosts(nil)
	a := h.f.file(0, 0, 0)
	h.answer()
	_, err := a.Read(make([]byte, 1))
	require.EqualError(t, err, "no such file")
	a.Close()
	_, err = a.Read(make([]byte, 1))
	require.Error(t, err)

	b := h.f.file(2, 1, 0)
	read := make(chan error, 1)
	go func() { // ends when the host is lost
		_, err := b.Read(make([]byte, 1))
		read <- err
	}()
	h.f.got(proto.Lost{First: 1, Count: 2, Cause: "node1: gone"})
	require.EqualError(t, <-read, "its host is lost: node1: gone")
	_, err = h.f.file(1, 2, 0).Read(make([]byte, 1))
	require.EqualError(t, err, "its host is lost: node1: gone")

	c := h.f.file(3, 3, 0)
	stopped := errors.New("stopped")
	h.f.stop(stopped)
	for _, file := range []*rankFile{c, h.f.file(3, 4, 0)} {
		_, err = file.Read(make([]byte, 1))
		require.ErrorIs(t, err, stopped)
	}
}

// TestUnexpectedParts: parts that nobody has asked for, or that come from another host, must change
// nothing, and a lost host with a number that cannot be must do no harm.
func TestUnexpectedParts(t *testing.T) {
	h := newFileHosts(map[rankFileKey][]byte{{0, 0}: []byte("data")})
	file := h.f.file(0, 0, 0)
	bad := []byte("bad")
	for _, p := range []proto.Part{{Index: 1, Data: bad}, {Rank: 5, Data: bad}, {File: 9, Data: bad}, {Index: -1, Rank: -1, File: -1}} {
		h.f.got(p)
	}
	h.f.got(proto.Lost{First: -5, Count: 3})
	got, err := io.ReadAll(answering{h, file})
	require.NoError(t, err)
	require.Equal(t, "data", string(got))
	h.f.got(proto.Part{Data: bad})
	n, err := file.Read(make([]byte, 1))
	require.Zero(t, n)
	require.ErrorIs(t, err, io.EOF)
}
