// Elastic teaches how a job starts workers while it runs, and gives them back, with Spawn and Parent.
// It counts the prime numbers below a limit.
//
//	gorun -np 1 ./examples/elastic -n 2000000 -workers 3
//
// The numbers are divided into waves. For each wave the job starts workers, hands out parts of the
// wave to them by messages, and gives the workers back: their processes end, and the next wave can
// have another number of workers. The workers run the same program; a worker knows that it is one
// because it has a parent.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/examples/internal/args"
)

type options struct {
	limit   int // count primes below
	waves   int
	workers int // in the first wave; each further wave has one more
	part    int // numbers in a part
}

func main() {
	var o options
	flag.IntVar(&o.limit, "n", 1000000, "count the primes below this `number`")
	flag.IntVar(&o.waves, "waves", 2, "`number` of waves")
	flag.IntVar(&o.workers, "workers", 2, "`number` of workers in the first wave")
	flag.IntVar(&o.part, "part", 10000, "`numbers` in each part that a worker gets")
	comm.Main(func(c *comm.Comm) error {
		args.Parse(c, "-n >= 1, -waves >= 1, -workers >= 1, -part >= 1 and no arguments", func() bool {
			return flag.NArg() > 0 || o.limit < 1 || o.waves < 1 || o.workers < 1 || o.part < 1
		})
		if parent := c.Parent(); parent != nil {
			return work(parent)
		}
		return manage(c, &o, os.Stdout)
	})
}

// span is the numbers from from to to-1. An empty span tells a worker that there is no more work.
type span struct{ From, To int }

// tag of the messages: parts to workers, and results to rank 0 of the job.
const tag = 1

// manage runs the waves. Rank 0 hands out the parts; the other ranks of the job only take part in the
// calls that concern all.
func manage(c *comm.Comm, o *options, out io.Writer) error {
	path, err := os.Executable()
	if err != nil {
		return err
	}
	total := 0
	for wave := range o.waves {
		workers, err := c.Spawn(0, comm.Proc{Path: path, N: o.workers + wave})
		if err != nil {
			return err
		}
		from, to := o.limit*wave/o.waves, o.limit*(wave+1)/o.waves
		if c.Rank() == 0 {
			n, err := handOut(workers, span{from, to}, o.part)
			if err != nil {
				return err
			}
			total += n
			g, _ := workers.Remote()
			fmt.Fprintf(out, "wave %d: %d workers found %d primes from %d to %d\n", wave, g.Size(), n, from, to-1)
		}
		if err := workers.Free(); err != nil { // the last tie to the workers
			return err
		}
	}
	if c.Rank() != 0 {
		return nil
	}
	if want := count(span{0, o.limit}); total != want {
		return fmt.Errorf("the workers found %d primes below %d, and there are %d", total, o.limit, want)
	}
	fmt.Fprintf(out, "%d primes below %d\n", total, o.limit)
	return nil
}

// handOut gives the parts of a span to the workers, and returns the number of primes that they find.
// A worker gets its next part when its last result arrives, so fast workers get more parts.
func handOut(workers *comm.Comm, all span, size int) (primes int, err error) {
	g, _ := workers.Remote()
	next := func() span {
		s := span{all.From, min(all.From+size, all.To)}
		all.From = s.To
		return s
	}
	for r := range g.Size() {
		if err := comm.Send(workers, []span{next()}, r, tag); err != nil {
			return 0, err
		}
	}
	for busy := g.Size(); busy > 0; {
		found := make([]int, 1)
		st, err := comm.Recv(workers, found, comm.AnySource, tag)
		if err != nil {
			return 0, err
		}
		if found[0] < 0 { // the worker has got an empty span
			busy--
			continue
		}
		primes += found[0]
		if err := comm.Send(workers, []span{next()}, st.Source, tag); err != nil {
			return 0, err
		}
	}
	return primes, nil
}

// work is the program of a worker: it counts the primes of the spans that it gets, until one is
// empty.
func work(parent *comm.Comm) error {
	for {
		s := make([]span, 1)
		if _, err := comm.Recv(parent, s, 0, tag); err != nil {
			return err
		}
		found := -1
		if s[0].From < s[0].To {
			found = count(s[0])
		}
		if err := comm.Send(parent, []int{found}, 0, tag); err != nil {
			return err
		}
		if found < 0 {
			return parent.Free()
		}
	}
}

// count returns the number of primes in a span.
func count(s span) (n int) {
	for x := max(s.From, 2); x < s.To; x++ {
		prime := true
		for d := 2; d*d <= x && prime; d++ {
			prime = x%d != 0
		}
		if prime {
			n++
		}
	}
	return n
}
