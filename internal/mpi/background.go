package mpi

// This file has what package mpiio needs of a communicator besides the calls of package comm.

// Background runs f in another goroutine, and returns a request that is complete when f has
// returned. The Status of the request has the number of bytes that f has returned, and the number
// of elements of size bytes in them. The request returns the error of f as it is. If the
// communicator cannot be used, Background does not run f, started is false, and the request returns
// ErrClosed; op is the name of the call in that error.
//
// f may block, but it must not start collectives of a communicator that other goroutines use at the
// same time.
func (c *Comm) Background(op string, size int, f func() (bytes int, err error)) (r Request, started bool) {
	s, err := c.live()
	if err != nil {
		return c.refused(op, noRank, noRank, err), false
	}
	q := s.job.eng.Begin()
	go func() { // ends when f has returned
		n, err := f()
		q.Complete(Status{Bytes: n}, err)
	}()
	return c.startedRequest(q, opTask, noRank, noRank, size), true
}

// Refused returns a request that is complete. Wait and Test of the request return err, which is not
// nil. op is the name of the call.
func (c *Comm) Refused(op string, err error) Request { return c.refused(op, noRank, noRank, err) }

// Hosts returns the number of the host of each rank of the communicator, or nil if the communicator
// cannot be used. Hosts is local.
func (c *Comm) Hosts() []int {
	s, err := c.live()
	if err != nil {
		return nil
	}
	return s.hosts(len(s.ranks))
}

// HostLeaders returns the lowest rank of each host of the communicator, in ascending order.
func (c *Comm) HostLeaders() []int {
	seen := make(map[int]bool)
	var leaders []int
	for r, h := range c.Hosts() {
		if !seen[h] {
			seen[h] = true
			leaders = append(leaders, r)
		}
	}
	return leaders
}
