package trace

import "time"

// Exchange is one exchange of clock readings between gorun and a host.
type Exchange struct {
	Asked    time.Duration // gorun's monotonic clock when it asked
	Answered time.Duration // gorun's monotonic clock when the answer came
	Remote   time.Duration // the host's monotonic clock in between
}

// offset is the host's clock minus gorun's, if the host has read its clock in the middle of the exchange.
func (e Exchange) offset() time.Duration { return e.Remote - e.Asked - (e.Answered-e.Asked)/2 }

// bound returns the largest error of offset: half the time of the exchange, rounded up.
func (e Exchange) bound() time.Duration { return (e.Answered - e.Asked + 1) / 2 }

// valid reports whether the readings are possible. Hosts send Remote, so it can be anything.
func (e Exchange) valid() bool {
	return e.Asked >= 0 && e.Answered >= e.Asked && e.Answered < maxTime && e.Remote >= 0 && e.Remote < maxTime
}

// Best returns the exchange that took the least time, because its offset has the least error.
func Best(list []Exchange) (best Exchange, ok bool) {
	for _, e := range list {
		if e.valid() && (!ok || e.bound() < best.bound()) {
			best, ok = e, true
		}
	}
	return best, ok
}

// Clock converts times of a host's monotonic clock to times of gorun's. The zero Clock is that of
// gorun's own host.
//
// The clocks of two hosts do not run equally fast. So gorun exchanges readings before the ranks start
// and after they have ended, and Clock assumes that the offset changes at a constant rate in between.
type Clock struct {
	first, last Exchange
	known       bool
}

// NewClock returns the Clock of a host with which gorun has made these exchanges: at the start and at the
// end. ok is false if there are none, or none with possible readings; then times stay as they are.
func NewClock(start, end []Exchange) (c Clock, ok bool) {
	first, ok1 := Best(start)
	last, ok2 := Best(end)
	if !ok1 && !ok2 {
		return Clock{}, false
	}
	c = Clock{first, last, true}
	switch drift := c.drift(); {
	case !ok1:
		c.first = last
	case !ok2:
		c.last = first
	case last.Remote <= first.Remote || drift > maxDrift || drift < -maxDrift:
		// The exchanges were too close to each other to show how fast the host's clock runs.
		best, _ := Best([]Exchange{first, last})
		c.first, c.last = best, best
	}
	return c, true
}

// maxDrift is larger than any change of the offset in a unit of time with clocks that work.
const maxDrift = 1e-3

// At returns the time of gorun's clock at the time t of the host's clock.
func (c Clock) At(t time.Duration) time.Duration {
	if !c.known {
		return t
	}
	offset := c.first.offset()
	if span := c.last.Remote - c.first.Remote; span > 0 {
		offset += time.Duration(c.drift() * float64(t-c.first.Remote))
	}
	return t - offset
}

// drift returns the change of the offset in a unit of time.
func (c Clock) drift() float64 {
	span := c.last.Remote - c.first.Remote
	if span <= 0 {
		return 0
	}
	return float64(c.last.offset()-c.first.offset()) / float64(span)
}

// Offset returns the host's clock minus gorun's, when the ranks were started.
func (c Clock) Offset() time.Duration {
	if !c.known {
		return 0
	}
	return c.first.offset()
}

// Bound returns the largest error of At between the first exchange and the last one, apart from
// changes of the rate.
func (c Clock) Bound() time.Duration {
	if !c.known {
		return 0
	}
	return max(c.first.bound(), c.last.bound())
}
