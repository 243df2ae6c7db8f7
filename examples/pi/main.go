// Pi teaches Reduce. The ranks compute π as the integral of 4/(1+x²) from 0 to 1, by the midpoint
// rule. Each rank adds up a part of the terms, and Reduce adds up the parts at rank 0.
//
//	gorun -np 4 ./examples/pi -n 100000000
//
// If the error of the result is larger than the error of the midpoint rule, Pi returns an error.
package main

import (
	"flag"
	"fmt"
	"math"
	"time"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/examples/internal/args"
)

func main() {
	n := flag.Int("n", 10_000_000, "`intervals`")
	comm.Main(func(c *comm.Comm) error {
		args.Parse(c, "-n >= 1 and no arguments", func() bool {
			return flag.NArg() > 0 || *n < 1
		})
		return integrate(c, *n)
	})
}

func integrate(c *comm.Comm, n int) error {
	start := time.Now()
	width := 1 / float64(n)
	part := []float64{0}
	for i := c.Rank(); i < n; i += c.Size() {
		x := (float64(i) + 0.5) * width
		part[0] += 4 / (1 + x*x)
	}
	part[0] *= width
	if err := comm.Reduce(c, part, part, comm.Sum, 0); err != nil {
		return err
	}
	if c.Rank() != 0 {
		return nil
	}
	fmt.Printf("pi is about %.15f, off by %.1e: %d intervals, %d ranks, %v\n",
		part[0], part[0]-math.Pi, n, c.Size(), time.Since(start).Round(time.Microsecond))
	// The error of the midpoint rule is width²/12; the rest is rounding.
	if off := math.Abs(part[0] - math.Pi); !(off <= 1.1*width*width/12+1e-10) {
		return fmt.Errorf("the result %v differs from π by %v", part[0], off)
	}
	return nil
}
