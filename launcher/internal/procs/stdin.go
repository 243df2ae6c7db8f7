package procs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/weft-hpc/weft/internal/sys"
	"golang.org/x/sys/unix"
)

// input is the ranks' standard input. A rank that alone reads it inherits a file or a pipe
// directly. If several ranks read a regular file, each inherits an open file with an offset of its
// own. No rank can inherit a terminal: each rank leads a process group of its own, and the kernel
// stops a background process group that reads from a terminal. In this and all other cases the
// goroutine pump reads the input and writes it to a pipe of each reader; then the slowest reader
// sets the pace.
type input struct {
	null   int           // descriptor of /dev/null
	fds    []int         // by local rank: the descriptor that it inherits; ranks beyond the end inherit null
	pipes  []*os.File    // write ends of the pipes from which the ranks read; empty: pump is not needed
	writes []*os.File    // copy of pipes, for pump alone; nil: pump has closed the pipe
	from   *Source       // what pump reads; nil: pump is not needed
	own    *os.File      // the file that the Source reads, if close must close it; otherwise nil
	done   chan struct{} // closed when pump has ended; nil: pump is not needed
	pumps  bool          // pump was started, and close was not called
}

// Values of Prepare.Stdin.
const (
	stdinRank0 = "rank0"
	stdinAll   = "all"
	stdinNone  = "none"
)

// openInput prepares the standard input of the ranks on this host. It starts the feed if the input
// comes in messages. If rank 0 runs on this host, its local number is 0.
func (c *Manager) openInput() (*input, error) {
	mode := c.job.Stdin
	if mode == stdinRank0 && c.plan.Ranks[0].Rank != 0 {
		mode = stdinNone
	}
	in := c.cfg.In
	if in == nil && mode != stdinNone {
		f, r, err := newFeed(c.cfg.Emit)
		if err != nil {
			return nil, err
		}
		c.feed, in = f, r
		i, err := newInput(mode, in, len(c.ranks))
		if err != nil || i.done == nil {
			_ = r.Close() // the rank inherits a copy of r, which newInput has made
		} else {
			i.own = r
		}
		return i, err
	}
	return newInput(mode, in, len(c.ranks))
}

// newInput prepares the descriptors that np ranks inherit as standard input. mode is one of the
// values of Prepare.Stdin. in is the file from which the input comes; nil: none. If pump is
// needed, in must stay open until close is called.
func newInput(mode string, in *os.File, np int) (_ *input, err error) {
	i := &input{}
	defer func() {
		if err != nil {
			i.close()
		}
	}()
	if i.null, err = unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("/dev/null: %w", err)
	}
	readers := 1
	switch {
	case in == nil, mode == stdinNone:
		return i, nil
	case mode == stdinAll:
		readers = np
	}
	fd := int(in.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return i, nil // stdin is closed, as with <&-
	}
	if readers == 1 && !sys.IsTerminal(fd) {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err == nil && flags&unix.O_NONBLOCK != 0 {
			// The Go runtime makes its pipes nonblocking. Programs do not expect EAGAIN.
			_ = unix.SetNonblock(fd, false)
		}
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		i.fds = []int{dup}
		return i, err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFREG && i.reopen(fd, readers) {
		return i, nil
	}
	for range readers {
		r, w, err := sys.Pipe()
		if err != nil {
			return nil, fmt.Errorf("pipe: %w", err)
		}
		i.fds = append(i.fds, r)
		_ = unix.SetNonblock(w, true) // so that close can end a Write
		i.pipes = append(i.pipes, os.NewFile(uintptr(w), "stdin"))
	}
	i.writes = slices.Clone(i.pipes)
	if i.from, err = NewSource(in); err != nil {
		return nil, err
	}
	i.done = make(chan struct{})
	return i, nil
}

// reopen opens a regular file again for every reader, so that each has an offset of its own, and
// begins at the present offset of fd. If it returns false, the system cannot do so, and pump reads
// the file.
func (i *input) reopen(fd, readers int) bool {
	at, err := unix.Seek(fd, 0, io.SeekCurrent)
	for range readers {
		if err != nil {
			break
		}
		var own int
		if own, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
			i.fds = append(i.fds, own)
			_, err = unix.Seek(own, at, io.SeekStart)
		}
	}
	if err == nil {
		return true
	}
	for _, fd := range i.fds {
		_ = unix.Close(fd)
	}
	i.fds = nil
	return false
}

// fd returns the descriptor that a rank inherits. rank is the rank's local number.
func (i *input) fd(rank int) int {
	if rank < len(i.fds) {
		return i.fds[rank]
	}
	return i.null
}

// started closes this process's copies of the descriptors that ranks inherit, and starts pump if it
// is needed. The caller calls it when all ranks have their copies. close ends pump and waits for
// it.
func (i *input) started() {
	i.release()
	if i.done != nil {
		i.pumps = true
		go i.pump()
	}
}

func (i *input) release() {
	for _, fd := range i.fds {
		_ = unix.Close(fd)
	}
	i.fds = nil
	if i.null > 0 {
		_ = unix.Close(i.null)
		i.null = -1
	}
}

// close ends pump and closes all files. The caller makes sure that all ranks have ended, or are
// stuck. A stuck rank may still hold its end of a full pipe, so close does not wait for writes.
func (i *input) close() {
	i.release()
	if i.pumps {
		i.pumps = false
		i.from.Stop()
		for _, w := range i.pipes {
			_ = w.SetWriteDeadline(time.Unix(1, 0)) // a deadline in the past ends a Write that blocks
		}
		<-i.done
	}
	closeFiles(i.pipes...)
	if i.from != nil {
		i.from.Close()
	}
	closeFiles(i.own)
}

// pump copies the input to every reader until the input ends, no reader is left, or close is
// called.
func (i *input) pump() {
	defer close(i.done)
	buf := make([]byte, 32<<10)
	for left := len(i.writes); left > 0; {
		n, err := i.from.Read(buf)
		if errors.Is(err, errStopped) {
			return
		}
		for r, w := range i.writes {
			if w == nil {
				continue
			}
			end := err != nil
			if !end {
				_, werr := w.Write(buf[:n])
				end = werr != nil // the reader has closed its end
			}
			if end {
				_ = w.Close()
				i.writes[r] = nil
				left--
			}
		}
	}
}
