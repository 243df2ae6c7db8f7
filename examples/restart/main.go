// Restart teaches how a program continues from saved state when gorun has started it again. It
// computes π in rounds, and rank 0 saves the state to a file after every round.
//
//	gorun -on-failure restart -np 4 ./examples/restart -file pi.state -die 2
//
// With -die N rank N kills itself in the first run of the job, before the round that -at gives.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/examples/internal/args"
)

type options struct {
	rounds, terms int
	file          string
	die, at       int
	kill          func() // kills this rank
}

func main() {
	o := options{kill: func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }}
	flag.IntVar(&o.rounds, "rounds", 20, "`number` of rounds")
	flag.IntVar(&o.terms, "n", 100000, "`intervals` per round")
	flag.StringVar(&o.file, "file", "", "`file` of the state, on the host of rank 0")
	flag.IntVar(&o.die, "die", -1, "`rank` that kills itself in the first run; -1: none")
	flag.IntVar(&o.at, "at", 7, "`round` before which the rank of -die kills itself")
	comm.Main(func(c *comm.Comm) error {
		args.Parse(c, "-file, -rounds >= 1, -n >= 1 and no arguments", func() bool {
			return flag.NArg() > 0 || o.rounds < 1 || o.terms < 1 || o.file == ""
		})
		return run(c, &o, os.Stdout)
	})
}

// state is the result of the rounds so far.
type state struct {
	Rounds int
	Sum    float64
}

func run(c *comm.Comm, o *options, out io.Writer) error {
	s := make([]state, 1)
	if c.Rank() == 0 && c.Epoch() > 0 { // if there is a file in the first run (epoch 0), it is from another job
		var err error
		if s[0], err = load(o.file); err != nil {
			return err
		}
	}
	if err := comm.Bcast(c, s, 0); err != nil {
		return err
	}
	if c.Rank() == 0 {
		fmt.Fprintf(out, "epoch %d: %d ranks begin after round %d\n", c.Epoch(), c.Size(), s[0].Rounds)
	}
	sum := make([]float64, 1)
	width := 1 / float64(o.rounds*o.terms)
	for s[0].Rounds < o.rounds {
		if c.Rank() == o.die && s[0].Rounds == o.at && c.Epoch() == 0 {
			o.kill()
			return nil
		}
		sum[0] = 0
		for i := s[0].Rounds*o.terms + c.Rank(); i < (s[0].Rounds+1)*o.terms; i += c.Size() {
			x := (float64(i) + 0.5) * width
			sum[0] += 4 / (1 + x*x)
		}
		if err := comm.Allreduce(c, sum, sum, comm.Sum); err != nil {
			return err
		}
		s[0] = state{s[0].Rounds + 1, s[0].Sum + sum[0]}
		if c.Rank() == 0 {
			if err := save(o.file, s[0]); err != nil {
				return err
			}
		}
	}
	if c.Rank() != 0 {
		return nil
	}
	fmt.Fprintf(out, "pi is about %.12f, %d rounds, epoch %d\n", s[0].Sum*width, o.rounds, c.Epoch())
	return os.Remove(o.file)
}

// save writes the state to a new file and renames it to file. So if the rank dies during save, the old file
// is left.
func save(file string, s state) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// load returns the state in the file. If there is no file, because the first run failed before it had saved a
// state, load returns the zero state.
func load(file string) (s state, err error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	return s, err
}
