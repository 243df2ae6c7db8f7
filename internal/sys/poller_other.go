//go:build !linux || portable

package sys

import (
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// A Poller waits for several descriptors at once, by poll(2). Its methods may be
// called at any time, also during a Wait, except Close, which is the last call.
type Poller struct {
	changed *Waker // ends a Wait during which the descriptors change
	sleeps  view   // the copy that Wait passes to poll(2)
	looks   view   // the copy that Now passes to poll(2), so Now does not wait for a Wait

	mu      sync.Mutex // guards the fields below
	added   []added
	version int // number of changes of added, ever
	waits   int // number of calls of Wait that are in poll(2)
}

// view holds a copy of the descriptors in the form that poll(2) takes.
type view struct {
	mu     sync.Mutex // locked before Poller.mu; held during poll(2)
	polled []unix.PollFd
	added  []added // the descriptors of polled[1:]
	of     int     // Poller.version when added was copied; -1: it was not copied yet
	first  int     // index of the descriptor to report first; changes at each poll, so no descriptor starves
}

// added is a descriptor of a Poller.
type added struct {
	fd, id int // id is the number with which Wait reports fd
	want   Interest
	serial int // Poller.version after the Add or Modify that made this value; no two are equal
}

// Event is what Wait reports about one descriptor that is ready.
type Event struct{ id int }

// ID returns the number that the descriptor has from Add or Modify.
func (e *Event) ID() int { return e.id }

// NewPoller makes a Poller without descriptors.
func NewPoller() (*Poller, error) {
	w, err := NewWaker()
	if err != nil {
		return nil, err
	}
	return &Poller{changed: w, sleeps: view{of: -1}, looks: view{of: -1}}, nil
}

// Add adds the descriptor fd. Wait reports it with the number id when it is ready for want, or has
// an error or the end of its stream. If fd was added before, Add returns an error.
func (p *Poller) Add(fd, id int, want Interest) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.find(fd) >= 0 {
		return unix.EEXIST
	}
	p.changedLocked()
	p.added = append(p.added, added{fd, id, want, p.version})
	return nil
}

// Modify changes the arguments id and want of a descriptor that was added. If fd was not added,
// Modify returns an error.
func (p *Poller) Modify(fd, id int, want Interest) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := p.find(fd)
	if i < 0 {
		return unix.ENOENT
	}
	p.changedLocked()
	p.added[i] = added{fd, id, want, p.version}
	return nil
}

// Remove undoes Add. The caller closes the descriptor after it. A descriptor that was
// not added is ignored.
func (p *Poller) Remove(fd int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.find(fd); i >= 0 {
		p.changedLocked()
		p.added = slices.Delete(p.added, i, i+1)
	}
}

func (p *Poller) find(fd int) int {
	return slices.IndexFunc(p.added, func(a added) bool { return a.fd == fd })
}

// changedLocked counts a change of p.added that the caller makes next, and ends a Wait under way.
// The caller holds p.mu.
func (p *Poller) changedLocked() {
	p.version++
	if p.waits > 0 {
		p.changed.Wake()
	}
}

// Wait blocks until a descriptor is ready or ms milliseconds have passed; -1: no limit. It fills
// events with ready descriptors, and returns their number. A signal ends it with unix.EINTR. A
// change of the descriptors ends it too; then the number may be 0.
func (p *Poller) Wait(events []Event, ms int) (int, error) { return p.poll(&p.sleeps, events, ms) }

// Now does what Wait does, but does not block.
func (p *Poller) Now(events []Event) (int, error) {
	for {
		n, err := p.poll(&p.looks, events, 0)
		if err != unix.EINTR {
			return n, err
		}
	}
}

func (p *Poller) poll(v *view, events []Event, ms int) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	p.mu.Lock()
	if v.of != p.version {
		v.of = p.version
		v.added = append(v.added[:0], p.added...)
		v.polled = append(v.polled[:0], unix.PollFd{Fd: int32(p.changed.FD()), Events: unix.POLLIN})
		for _, a := range v.added {
			v.polled = append(v.polled, unix.PollFd{Fd: int32(a.fd), Events: int16(a.want)})
		}
	}
	if ms == 0 {
		v.polled[0].Fd = -1 // poll(2) ignores -1; only Wait needs to learn of a change
	} else {
		v.polled[0].Fd = int32(p.changed.FD())
		p.waits++
	}
	p.mu.Unlock()

	_, err := unix.Poll(v.polled, ms)

	p.mu.Lock()
	defer p.mu.Unlock()
	if ms != 0 {
		if p.waits--; v.polled[0].Revents != 0 {
			p.changed.Clear()
		}
	}
	if err != nil {
		return 0, err
	}
	n := 0
	v.first++
	for i := range v.added {
		k := (v.first + i) % len(v.added)
		if v.polled[1+k].Revents == 0 {
			continue
		}
		// The caller may have removed the descriptor meanwhile, closed it, and added another one with
		// the same number. Then the serial numbers differ.
		a := v.added[k]
		if now := p.find(a.fd); now < 0 || p.added[now].serial != a.serial {
			continue
		}
		if n == len(events) {
			break
		}
		events[n] = Event{a.id}
		n++
	}
	return n, nil
}

// FD returns a descriptor that is readable when Wait would not block. ok is false if there is
// none, as here.
func (p *Poller) FD() (fd int, ok bool) { return -1, false }

// Close frees the Poller, and none of the descriptors in it.
func (p *Poller) Close() { p.changed.Close() }
