package procs

import (
	"errors"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"golang.org/x/sys/unix"
)

// notifyLimit is the largest number of bytes of failure notifications that the Manager keeps for
// a rank that does not read them.
const notifyLimit = 1 << 20

// reply sends a line to local rank i on its control channel. There is always room for a line if the
// rank reads each reply before it sends its next request. If there is no room, reply closes the
// channel.
func (c *Manager) reply(i int, line []byte) {
	fd := c.ranks[i].ctl
	if fd < 0 {
		return
	}
	// If n is -1, the rank has closed its end. The channel stays open, because an abort that the
	// rank has written may still be in it.
	if n := send(fd, line); n >= 0 && n < len(line) {
		c.closeControl(i)
	}
}

// notify handles RanksFailed: it sends failure notifications to the ranks of the group on this host,
// except to the ranks that have failed.
func (c *Manager) notify(m proto.RanksFailed) {
	line := wire.AppendFailures(nil, m.JobID, m.Ranks, m.Reason)
	failed := make(map[int]bool, len(m.Ranks))
	for _, r := range m.Ranks {
		failed[r] = m.JobID == ""
	}
	for i := range c.ranks {
		rk := &c.ranks[i]
		if rk.notify < 0 || failed[c.rankOf(i)] {
			continue
		}
		full := len(rk.unsent) > 0
		if rk.unsent = append(rk.unsent, line...); !full {
			c.sendNotify(i)
		}
		if len(rk.unsent) > notifyLimit {
			c.closeNotify(i) // a rank must get every notification, or find its channel closed
		}
	}
}

// sendNotify sends as many of rank i's unsent notifications as the channel has room for. The poller
// reports when there is more room, and the Manager then calls sendNotify again. If the rank has
// closed its end, sendNotify closes the channel.
func (c *Manager) sendNotify(i int) {
	rk := &c.ranks[i]
	if rk.notify < 0 {
		return
	}
	n := send(rk.notify, rk.unsent)
	switch {
	case n < 0:
		c.closeNotify(i)
	case n == len(rk.unsent):
		c.poller.Remove(rk.notify) // has no effect if rk.notify is not in the poller
		rk.unsent = nil
	default:
		rk.unsent = append(rk.unsent[:0], rk.unsent[n:]...)
		err := c.poller.Add(rk.notify, notifyIndex(i), sys.Out)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			c.closeNotify(i)
		}
	}
}

func (c *Manager) closeNotify(i int) {
	rk := &c.ranks[i]
	if rk.notify >= 0 {
		// unix.Close alone does not remove the channel from the poller, because a rank that is
		// being forked may have a copy of it.
		c.poller.Remove(rk.notify)
		_ = unix.Close(rk.notify)
		rk.notify, rk.unsent = -1, nil
	}
}

// send sends as many bytes as fd has room for, and returns their number. If sending fails, it
// returns -1: usually the rank at the other end has closed it. If the rank has ended, its pidfd
// reports this.
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
