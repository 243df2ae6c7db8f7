// Package contest measures several sides alternately and compares the first side with the others. It
// also builds the measured programs, runs them so that no process is left, and describes the machine.
package contest

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
)

// A Contest measures some lines of a table, with one program per side.
type Contest struct {
	Name  string // its name in progress messages
	Lines []Line
	Ours  Side
	Peers []Side // none: the targets are for our figures
}

// Line describes the sides' figures and the target for ours.
type Line struct {
	What   string
	Unit   string
	Target float64 // 0: there is none
	More   bool    // a larger figure is better; the target is a lower bound, else an upper bound
	Of     Basis
}

// Metric is a field of the benchmarks' results (bench -json).
type Metric struct {
	Key   string // in the JSON objects
	Scale float64
	Unit  string
	More  bool // a larger value is better
}

// The metrics that comparisons share.
var (
	Micros    = Metric{"median_us", 1, "µs", false}
	Bandwidth = Metric{"bytes_per_s", 1e-9, "GB/s", true}
	Rate      = Metric{"messages_per_s", 1e-6, "M/s", true}
)

// Basis is the value that a target applies to.
type Basis int

// The bases of targets.
const (
	OfRatio      Basis = iota // our figure ÷ the better peer's
	OfDifference              // our figure minus the better peer's
	OfFigure                  // our figure alone; the table shows peers for comparison
)

// Side is one of the compared programs.
type Side struct {
	Name string
	// Measure returns a figure for each line, in their order. With an error it may return
	// fewer.
	Measure func(ctx context.Context) ([]float64, error)
}

// Result is a line with its figures.
type Result struct {
	Line
	Sides []Figures // the first is ours
}

// Figures are a side's figures, one per round.
type Figures struct {
	Name   string
	Rounds []float64 // empty: the side failed
	Err    error     `json:"-"` // the failure that ended its measurements; nil: none
}

// Run measures every side once per round and returns the results of the lines. A side that fails is
// not measured again, and keeps its figures so far. Run returns an error only if ctx ends.
func (c *Contest) Run(ctx context.Context, progress io.Writer, rounds int) ([]Result, error) {
	sides := append([]Side{c.Ours}, c.Peers...)
	results := make([]Result, len(c.Lines))
	for i, line := range c.Lines {
		results[i] = Result{Line: line, Sides: make([]Figures, len(sides))}
		for at, s := range sides {
			results[i].Sides[at].Name = s.Name
		}
	}
	failed := make([]bool, len(sides))
	for round := range rounds {
		for i := range sides {
			at := (round + i) % len(sides) // each round starts with another side
			if failed[at] {
				continue
			}
			figures, err := sides[at].Measure(ctx)
			if ctx.Err() != nil {
				return nil, fmt.Errorf("%s: %s: %w", c.Name, sides[at].Name, ctx.Err())
			}
			if err == nil && len(figures) != len(c.Lines) {
				err = fmt.Errorf("%d figures instead of %d", len(figures), len(c.Lines))
			}
			for i := range min(len(figures), len(results)) {
				f := &results[i].Sides[at]
				f.Rounds = append(f.Rounds, figures[i])
			}
			if err != nil {
				failed[at] = true
				for i := range results {
					results[i].Sides[at].Err = err
				}
				fmt.Fprintf(progress, "%s: %s: %v\n", c.Name, sides[at].Name, err)
			}
		}
		fmt.Fprintf(progress, "%s: round %d of %d\n", c.Name, round+1, rounds)
	}
	return results, nil
}

// Single returns a Measure function for a single figure.
func Single(measure func(ctx context.Context) (float64, error)) func(ctx context.Context) ([]float64, error) {
	return func(ctx context.Context) ([]float64, error) {
		x, err := measure(ctx)
		if err != nil {
			return nil, err
		}
		return []float64{x}, nil
	}
}

// Median returns the median of the rounds, NaN if there are none.
func (f Figures) Median() float64 { return median(f.Rounds) }

func median(of []float64) float64 {
	s := slices.Sorted(slices.Values(of))
	switch n := len(s); {
	case n == 0:
		return math.NaN()
	case n%2 == 0:
		return (s[n/2-1] + s[n/2]) / 2
	default:
		return s[n/2]
	}
}

// better returns the peer with the best median, nil if no peer has a figure.
func (r *Result) better() *Figures {
	var best *Figures
	for i := range r.Sides[1:] {
		p := &r.Sides[1+i]
		if len(p.Rounds) > 0 && (best == nil || (p.Median() > best.Median()) == r.More) {
			best = p
		}
	}
	return best
}

// Best returns the median of the better peer, NaN if no peer has a figure.
func (r *Result) Best() float64 {
	if p := r.better(); p != nil {
		return p.Median()
	}
	return math.NaN()
}

// Ratio returns our figure ÷ the better peer's: the median of the ratios within each round, because
// the speed of the machine changes between rounds. If one of the two did not complete all rounds,
// Ratio returns the ratio of their medians. It returns NaN if one of them has no figure.
func (r *Result) Ratio() float64 {
	ours, p := r.Sides[0].Rounds, r.better()
	if p == nil || len(p.Rounds) != len(ours) {
		return r.Sides[0].Median() / r.Best()
	}
	ratios := make([]float64, len(ours))
	for i, x := range ours {
		ratios[i] = x / p.Rounds[i]
	}
	return median(ratios)
}

// Value returns the value that the target applies to, NaN if a figure is missing.
func (r *Result) Value() float64 {
	switch r.Of {
	case OfFigure:
		return r.Sides[0].Median()
	case OfDifference:
		return r.Sides[0].Median() - r.Best()
	default:
		return r.Ratio()
	}
}

// Verdict says whether a target is met.
type Verdict string

// The verdicts.
const (
	Open   Verdict = "–" // there is no target, or no peer to compare with
	Met    Verdict = "yes"
	Missed Verdict = "no"
)

// Verdict compares the value with the target. If our side has no figure, the target is missed.
func (r *Result) Verdict() Verdict {
	value := r.Value()
	switch {
	case r.Target == 0:
		return Open
	case len(r.Sides[0].Rounds) == 0:
		return Missed
	case math.IsNaN(value):
		return Open
	case r.More && value >= r.Target, !r.More && value <= r.Target:
		return Met
	}
	return Missed
}

// Bound returns the target as text, for example "≤ 0.8".
func (r *Result) Bound() string {
	sign := "≤"
	if r.More {
		sign = "≥"
	}
	switch {
	case r.Target == 0:
		return string(Open)
	case r.Of == OfDifference:
		return fmt.Sprintf("%s %+g %s", sign, r.Target, r.Unit)
	case r.Of == OfFigure && r.Unit == "%":
		return fmt.Sprintf("%s %g %%", sign, r.Target)
	}
	return fmt.Sprintf("%s %g", sign, r.Target)
}

// Digits returns a figure with four significant digits and without an exponent, or "–" if it is
// missing.
func Digits(x float64) string {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return string(Open)
	}
	decimals := 3
	if x != 0 {
		decimals = 3 - int(math.Floor(math.Log10(math.Abs(x))))
	}
	scale := math.Pow(10, float64(decimals))
	return strconv.FormatFloat(math.Round(x*scale)/scale, 'f', -1, 64)
}

// BytesText returns a size as text, for example "4 KiB".
func BytesText(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}
