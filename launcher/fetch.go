package launcher

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// fetcher reads files that ranks have filled (proto.Prepare.RankFiles) from their hosts, when the ranks
// have ended:
//
//	rankFile.Read ── Fetch ──► tree ──► host
//	     ▲                               │
//	     └── parts ◄── got ◄── Part ─────┘
//
// A rankFile asks for at most fetchAhead parts that Read has not returned yet. So it needs a bounded
// amount of memory, here and in each node of the tree, regardless of the size of the file. Any number
// of files may be open.
type fetcher struct {
	do func(proto.Message) // Node.Do; called with mu held

	mu   sync.Mutex // guards the fields below, and those of the open files
	open map[rankFileKey]*rankFile
	lost map[int]error // by index: hosts whose connection is lost, and why
	err  error         // why nothing more is read; nil: stop was not called
}

// fetchAhead is the largest number of parts that a rankFile asks for in advance. It first asks for one,
// because most files have no more.
const fetchAhead = 4

// rankFileKey identifies a file: the number of the rank in the job, and the index of the file in
// Prepare.RankFiles.
type rankFileKey struct{ rank, file int }

// rankFile is a file of a rank that is being read. It is an io.ReadCloser for one goroutine.
type rankFile struct {
	f    *fetcher
	host int // index of the host
	key  rankFileKey

	// fetcher.mu guards the fields below.
	more  sync.Cond // signaled when parts come, and when err is set
	parts [][]byte  // parts that Read has not returned yet; the first may be the rest of one
	asked int       // number of parts that were asked for and have not come
	next  int64     // offset of the next part to ask for
	last  bool      // the last part has come
	err   error     // why no more parts come; nil: they may come
}

func newFetcher(do func(proto.Message)) *fetcher {
	return &fetcher{do: do, open: make(map[rankFileKey]*rankFile), lost: make(map[int]error)}
}

// file opens a file of a rank, and asks for its first part. It does not block. The caller must call
// Close. No file may be opened twice.
func (f *fetcher) file(host, rank, file int) *rankFile {
	r := &rankFile{f: f, host: host, key: rankFileKey{rank, file}}
	r.more.L = &f.mu
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.err = f.err; r.err == nil {
		r.err = f.lost[host]
	}
	f.open[r.key] = r
	r.ask(1)
	return r
}

// ask asks for parts until most are on the way or have not been read. The caller holds mu.
func (r *rankFile) ask(most int) {
	for r.err == nil && !r.last && r.asked+len(r.parts) < most {
		r.f.do(proto.Fetch{Index: r.host, Rank: r.key.rank, File: r.key.file, Offset: r.next})
		r.asked++
		r.next += proto.MaxPart
	}
}

// Read returns the next bytes of the file. It blocks until there are some. Its error is io.EOF at the end
// of the file, and otherwise says why the rest of the file cannot be read: for example, because the
// connection with the host is lost.
func (r *rankFile) Read(p []byte) (int, error) {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	for len(r.parts) == 0 && !r.last && r.err == nil {
		r.more.Wait()
	}
	if len(r.parts) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		return 0, io.EOF
	}
	n := copy(p, r.parts[0])
	if r.parts[0] = r.parts[0][n:]; len(r.parts[0]) == 0 {
		r.parts = r.parts[1:]
		r.ask(fetchAhead)
	}
	return n, nil
}

// Close forgets the file. Parts that are still on the way are dropped.
func (r *rankFile) Close() {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	delete(r.f.open, r.key)
	r.parts = nil
	r.fail(errors.New("the file is closed"))
}

// fail makes Read return err when it has returned the parts that have come. The caller holds mu.
func (r *rankFile) fail(err error) {
	if r.err == nil && !r.last {
		r.err = err
		r.more.Broadcast()
	}
}

// got takes a message from the tree that is about files of ranks: a Part, or the loss of hosts. It does
// not block.
func (f *fetcher) got(m proto.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch m := m.(type) {
	case proto.Part:
		r := f.open[rankFileKey{m.Rank, m.File}]
		if r == nil || r.host != m.Index || r.asked == 0 || r.last || r.err != nil {
			return
		}
		r.asked--
		if m.Failed {
			r.fail(errors.New(string(m.Data)))
			return
		}
		if len(m.Data) > 0 {
			r.parts = append(r.parts, m.Data)
		}
		r.last = len(m.Data) < proto.MaxPart
		r.more.Broadcast()
	case proto.Lost:
		for r := range m.Count {
			host := m.First + r
			if f.lost[host] != nil {
				continue
			}
			f.lost[host] = fmt.Errorf("its host is lost: %s", strings.TrimSpace(m.Cause))
		}
		for _, r := range f.open {
			if err := f.lost[r.host]; err != nil {
				r.fail(err)
			}
		}
	}
}

// stop makes all reads end with err, now and later.
func (f *fetcher) stop(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
	for _, r := range f.open {
		r.fail(f.err)
	}
}
