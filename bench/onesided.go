package main

import (
	"errors"
	"fmt"

	"github.com/weft-hpc/weft/comm"
)

// The benchmarks of this file time one-sided transfers between rank 0 and rank 1's part of an RMA
// window. During the measurement rank 1 only waits in the collective that ends it. The transfers
// between two flushes all use different parts of memory, as in bench/c/fi_rma.c.

var putBW = benchmark{
	name:    "put_bw",
	help:    "bandwidth of Put from rank 0 to rank 1, windows of 64 and Flush; us per Put",
	sizes:   "1..1m",
	prepare: func(c *comm.Comm, size int) (*part, error) { return oneSided(c, size, window, false) },
}

var getBW = benchmark{
	name:    "get_bw",
	help:    "bandwidth of Get by rank 0 from rank 1, windows of 64 and Flush; us per Get",
	sizes:   "1..1m",
	prepare: func(c *comm.Comm, size int) (*part, error) { return oneSided(c, size, window, true) },
}

var putLatency = benchmark{
	name:    "put_latency",
	help:    "Put from rank 0 to rank 1, and Flush",
	sizes:   "1..1m",
	prepare: func(c *comm.Comm, size int) (*part, error) { return oneSided(c, size, 1, false) },
}

var getLatency = benchmark{
	name:    "get_latency",
	help:    "Get by rank 0 from rank 1, and Flush",
	sizes:   "1..1m",
	prepare: func(c *comm.Comm, size int) (*part, error) { return oneSided(c, size, 1, true) },
}

var fetchOp = benchmark{
	name:    "fetchop",
	help:    "FetchOp of an int64 with Sum by rank 0 at rank 1",
	prepare: prepareFetchOp,
}

// leastWindow is the smallest size in bytes of each rank's part of the RMA window: one page. The C
// program for the peers uses the same size, because MPICH 4.0.2 fails with parts of 8 bytes.
const leastWindow = 4096

// oneSided returns a part whose operation is a number of Puts or Gets (transfers) of size bytes each,
// and then a Flush.
func oneSided(c *comm.Comm, size, transfers int, get bool) (*part, error) {
	w, err := comm.NewWin[byte](c, max(transfers*size, leastWindow))
	if err != nil {
		return nil, err
	}
	buf, free, err := comm.Alloc[byte](c, transfers*size)
	if err != nil {
		return nil, errors.Join(err, w.Free())
	}
	if err := w.LockAll(); err != nil {
		return nil, errors.Join(err, w.Free())
	}
	move := w.Put
	if get {
		move = w.Get
	}
	once := func() error {
		for i := range transfers {
			if err := move(buf[i*size:][:size], 1, i*size); err != nil {
				return err
			}
		}
		return w.Flush(1)
	}
	p := &part{
		perOp: float64(transfers), bytes: float64(transfers * size),
		close: func() error {
			defer free()
			return errors.Join(w.UnlockAll(), w.Free())
		},
	}
	if c.Rank() == 0 {
		p.repeat = timed(once)
	}
	from := 0 // the rank that the data come from
	if get {
		from = 1
	}
	p.verify = func() error {
		fill(buf, c.Rank())
		if c.Rank() == 1 {
			fill(w.Local()[:len(buf)], 1)
			if err := w.Sync(); err != nil {
				return err
			}
		}
		if err := c.Barrier(); err != nil {
			return err
		}
		if c.Rank() == 0 {
			if err := once(); err != nil {
				return err
			}
		}
		if err := c.Barrier(); err != nil {
			return err
		}
		switch c.Rank() {
		case 0:
			return compare(buf, from)
		case 1:
			if err := w.Sync(); err != nil {
				return err
			}
			return compare(w.Local()[:len(buf)], from)
		}
		return nil
	}
	return p, nil
}

func prepareFetchOp(c *comm.Comm, _ int) (*part, error) {
	w, err := comm.NewWin[int64](c, 1)
	if err != nil {
		return nil, err
	}
	if err := w.LockAll(); err != nil {
		return nil, errors.Join(err, w.Free())
	}
	p := &part{close: func() error { return errors.Join(w.UnlockAll(), w.Free()) }}
	if c.Rank() != 0 {
		return p, nil
	}
	count := int64(0)
	once := func() error {
		before, err := w.FetchOp(1, 1, 0, comm.Sum)
		if err == nil && before != count {
			err = fmt.Errorf("fetched %d, not %d", before, count)
		}
		count++
		return err
	}
	p.repeat, p.verify = timed(once), once
	return p, nil
}
