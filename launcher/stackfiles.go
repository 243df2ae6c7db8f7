package launcher

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// stackFiles writes the stacks of ranks into files as they arrive. A goroutine of its own writes,
// because a file server may be slow or may not answer at all.
//
//	control ── add ──► at most stacksRoom bytes ──► loop ──► DIR/RANK.stacks
type stackFiles struct {
	dir  string // "": loop makes a temporary directory
	temp bool
	in   chan proto.Stacks   // has room for the stacks of all ranks
	room *semaphore.Weighted // bytes that may still wait in in
	lost int                 // number of ranks whose stacks found no room
	time time.Duration       // stacksTime

	// closed is set by the first of these, which decides whether the files stay. loop sets it when
	// all files are written; then they stay. finish and abandon set it if gorun will not name the
	// files to a user; then loop writes no more files, and removes a temporary directory.
	closed atomic.Bool

	done    chan struct{} // closed when loop has ended; after that, written and err are valid
	written int           // number of ranks
	err     error         // the first one
}

const (
	stacksRoom = 64 << 20        // bytes
	stacksTime = 5 * time.Second // how long gorun, before it ends a job, waits for stacks to be written
)

// newStackFiles returns a stackFiles for the stacks of at most so many ranks. An empty dir
// means a new temporary directory. The caller calls finish or abandon.
func newStackFiles(dir string, ranks int) *stackFiles {
	s := &stackFiles{dir: dir, temp: dir == "", in: make(chan proto.Stacks, ranks), room: semaphore.NewWeighted(stacksRoom), time: stacksTime, done: make(chan struct{})}
	go s.loop() // ends after finish or abandon, when the file server has answered the last call
	return s
}

// add takes the stacks of a rank. It does not block.
func (s *stackFiles) add(m proto.Stacks) {
	n := int64(len(m.Data))
	if s.room.TryAcquire(n) {
		select {
		case s.in <- m:
			return
		default: // the host has sent more than one for a rank
			s.room.Release(n)
		}
	}
	s.lost++
}

// abandon ends the writing of stacks for which no request waits any more.
func (s *stackFiles) abandon() {
	s.closed.Store(true)
	close(s.in)
}

// finish waits until all stacks are written, at most stacksTime, and then abandons the rest.
// It returns a line about them.
func (s *stackFiles) finish() string {
	close(s.in)
	const failed = "the stacks could not be written: "
	select {
	case <-s.done:
	case <-time.After(s.time):
		if !s.closed.CompareAndSwap(false, true) {
			<-s.done // loop has written the last file at this moment
			break
		}
		where := "the directory for temporary files"
		if !s.temp {
			where = s.dir
		}
		return fmt.Sprintf("%s%s did not take them within %v", failed, where, s.time)
	}
	switch {
	case s.err != nil:
		return failed + s.err.Error()
	case s.written == 0:
		return "no rank has sent its stacks"
	}
	line := "stacks of all goroutines: " + filepath.Join(s.dir, "RANK.stacks")
	if s.lost > 0 {
		line += fmt.Sprintf(", without %s, because %s takes them too slowly", plural(s.lost, "rank"), s.dir)
	}
	return line
}

func (s *stackFiles) loop() {
	defer close(s.done)
	for m := range s.in {
		if s.closed.Load() {
			continue
		}
		err := s.write(m)
		s.room.Release(int64(len(m.Data)))
		switch {
		case err == nil:
			s.written++
		case s.err == nil:
			s.err = err
		}
	}
	if !s.closed.CompareAndSwap(false, true) && s.temp && s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}

// write writes one file under a temporary name, and renames the file when it is complete. If closed
// is set before that, the inspection has been given up, and a file of a later inspection may have
// the same name; then write removes its file. The rename replaces an existing file of that name. So
// write never follows a link, which another user with write access to the directory could have made
// to a file of this user.
func (s *stackFiles) write(m proto.Stacks) (err error) {
	if s.dir == "" {
		s.dir, err = os.MkdirTemp("", "gorun-stacks-")
	} else {
		err = os.MkdirAll(s.dir, 0o777)
	}
	if err != nil {
		return err
	}
	name := strconv.Itoa(m.Rank) + ".stacks"
	part := filepath.Join(s.dir, "."+name+"-"+rand.Text())
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	_, err = f.Write(m.Data)
	err = errors.Join(err, f.Close())
	keep := err == nil && !s.closed.Load()
	if keep {
		err = os.Rename(part, filepath.Join(s.dir, name))
	}
	if err != nil || !keep {
		_ = os.Remove(part)
	}
	return err
}
