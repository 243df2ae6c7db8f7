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

// stackFiles writes the stacks of ranks into the files of one directory, as the stacks arrive from
// the hosts. A goroutine of its own, which runs [stackFiles.loop], writes the files, because a file
// server may be slow or may not answer at all.
//
//	control ── add ──► in: at most stacksRoom bytes ──► loop ──► DIR/RANK.stacks
type stackFiles struct {
	// dir is the directory. If it is "", [stackFiles.loop] makes a temporary directory before it
	// writes the first file.
	dir   string
	names []string          // the names of the ranks, by number in the job; nil: the numbers themselves
	temp  bool              // the directory is temporary
	in    chan proto.Stacks // stacks that [stackFiles.loop] has not taken; the capacity is the number of ranks
	// room counts the bytes of stacks that [stackFiles.add] has queued and loop has not written: at
	// most stacksRoom.
	room *semaphore.Weighted
	lost int           // number of Stacks messages that [stackFiles.add] has dropped
	time time.Duration // how long [stackFiles.finish] waits: stacksTime, or less in tests

	// The goroutine that is the first to set closed decides whether the files stay. If loop sets
	// closed, it has written all files, and they stay. If finish or abandon sets it, gorun does not
	// name the files to the user. loop then writes no more files, and removes a temporary
	// directory.
	closed atomic.Bool

	// done is closed when [stackFiles.loop] has ended. Only after that may other goroutines read
	// written, err and dir.
	done    chan struct{}
	written int   // number of files that loop has written
	err     error // the first error of loop; nil: none
}

const (
	stacksRoom = 64 << 20 // most bytes of stacks that may wait for [stackFiles.loop]
	// stacksTime is the longest time for which an inspection waits at its end for its stacks to be
	// written.
	stacksTime = 5 * time.Second
)

// newStackFiles returns a stackFiles for the stacks of at most ranks ranks, and starts its loop. If
// dir is empty, the files are in a new temporary directory. The caller must call finish or abandon.
// names are the names of the ranks, by number in the job; nil: the numbers themselves.
func newStackFiles(dir string, ranks int, names []string) *stackFiles {
	s := &stackFiles{dir: dir, names: names, temp: dir == "", in: make(chan proto.Stacks, ranks), room: semaphore.NewWeighted(stacksRoom), time: stacksTime, done: make(chan struct{})}
	// The goroutine ends after [stackFiles.finish] or [stackFiles.abandon], as soon as its last
	// system call has returned. No goroutine waits for it longer than stacksTime.
	go s.loop()
	return s
}

// add queues the stacks of a rank for loop, or drops them if there is no room. It does not block.
// The caller must not change m.Data afterwards.
func (s *stackFiles) add(m proto.Stacks) {
	n := int64(len(m.Data))
	if s.room.TryAcquire(n) {
		select {
		case s.in <- m:
			return
		default: // the channel is full, which happens only if a host has sent several Stacks for one rank
			s.room.Release(n)
		}
	}
	s.lost++
}

// abandon makes loop end without writing more files. It is for an inspection whose requests were
// answered without the files. It does not block.
func (s *stackFiles) abandon() {
	s.closed.Store(true)
	close(s.in)
}

// finish waits until loop has written all stacks, but at most s.time. Stacks that loop has not
// written by then are dropped. finish returns a line for the user: where the files are, or why
// there are none.
func (s *stackFiles) finish() string {
	close(s.in)
	const failed = "the stacks could not be written: "
	select {
	case <-s.done:
	case <-time.After(s.time):
		if !s.closed.CompareAndSwap(false, true) {
			<-s.done // loop has just set closed, after it has written the last file
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

// loop writes the stacks that add has queued, until finish or abandon has closed the channel in.
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

// write writes the stacks of one rank to a file with a temporary name. When the file is complete,
// write renames it to RANK.stacks. If closed is set before that, gorun no longer waits for the
// file, and a later inspection may already have written a file of this name. write then removes the
// file with the temporary name.
//
// The rename replaces an existing file of that name. So write never follows a symbolic link: another
// user with write access to the directory could have made one to a file of this user.
func (s *stackFiles) write(m proto.Stacks) (err error) {
	if s.dir == "" {
		s.dir, err = os.MkdirTemp("", "gorun-stacks-")
	} else {
		err = os.MkdirAll(s.dir, 0o777)
	}
	if err != nil {
		return err
	}
	name := strconv.Itoa(m.Rank)
	if m.Rank < len(s.names) {
		name = s.names[m.Rank]
	}
	name += ".stacks"
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
