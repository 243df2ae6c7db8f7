package crew

import (
	"errors"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"golang.org/x/sys/unix"
)

// newsLimit bounds the news that are kept for a rank that does not read them.
const newsLimit = 1 << 20

// reply sends a line to a rank. A rank asks and then reads, so there is always
// room; one that only asks is cut off.
func (c *Crew) reply(i int, line []byte) {
	fd := c.ranks[i].ctl
	if fd < 0 {
		return
	}
	// Of one that has gone there may be more to read: abort, say.
	if n := send(fd, line); n >= 0 && n < len(line) {
		c.closeControl(i)
	}
}

// news tells the ranks here of those that have failed.
func (c *Crew) news(m proto.News) {
	line := wire.AppendFailures(nil, m.Ranks, m.Reason)
	failed := make(map[int]bool, len(m.Ranks))
	for _, r := range m.Ranks {
		failed[r] = true
	}
	for i := range c.ranks {
		rk := &c.ranks[i]
		if rk.news < 0 || failed[c.plan.Ranks[i].Rank] {
			continue
		}
		full := len(rk.unsent) > 0
		if rk.unsent = append(rk.unsent, line...); !full {
			c.sendNews(i)
		}
		if len(rk.unsent) > newsLimit {
			c.closeNews(i) // it has not read for long, and is to miss nothing between
		}
	}
}

// sendNews sends what there is room for, and the rest when there is again.
func (c *Crew) sendNews(i int) {
	rk := &c.ranks[i]
	if rk.news < 0 {
		return
	}
	n := send(rk.news, rk.unsent)
	switch {
	case n < 0:
		c.closeNews(i)
	case n == len(rk.unsent):
		c.poller.Remove(rk.news) // it need not be there
		rk.unsent = nil
	default:
		rk.unsent = append(rk.unsent[:0], rk.unsent[n:]...)
		err := c.poller.Add(rk.news, newsIndex(i), sys.Out)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			c.closeNews(i)
		}
	}
}

func (c *Crew) closeNews(i int) {
	rk := &c.ranks[i]
	if rk.news >= 0 {
		c.poller.Remove(rk.news) // as in closeControl
		_ = unix.Close(rk.news)
		rk.news, rk.unsent = -1, nil
	}
}

// send sends what there is room for, and returns how much that was; -1: the reader
// has gone, which its pidfd tells.
func send(fd int, data []byte) int {
	sent := 0
	for sent < len(data) {
		n, err := unix.SendmsgN(fd, data[sent:], nil, nil, unix.MSG_DONTWAIT|sys.NoSignal)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return sent
		case err != nil:
			return -1
		default:
			sent += n
		}
	}
	return sent
}
