// Package contest compares programs. The compared programs are the sides: the first side is ours, which
// uses weft, and the others are the peers. They are measured in turn. The package also builds the
// programs, runs them so that no process is left, and describes the machine.
package contest

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
)

// A Contest is a comparison of one program per side. One measurement of a side gives a figure for each
// of some lines of a table, for example one line per message size.
type Contest struct {
	Name  string // name in progress messages
	Lines []Line
	Ours  Side
	Peers []Side // may be empty if all targets are for our figures alone (OfFigure)
}

// Line describes one line of the table: what is measured, and the target for our side.
type Line struct {
	What   string
	Unit   string  // of the figures
	Target float64 // bound for the value that Of names; 0: there is no target
	More   bool    // a larger figure is better, so Target is a lower bound; false: an upper bound
	Of     Basis
}

// Metric is a number in the results that the benchmarks print (bench -json).
type Metric struct {
	Key   string  // key in the JSON objects
	Scale float64 // factor from the number to a figure in Unit
	Unit  string
	More  bool // a larger figure is better
}

// The metrics that several comparisons use.
var (
	Micros    = Metric{"median_us", 1, "µs", false}
	Bandwidth = Metric{"bytes_per_s", 1e-9, "GB/s", true}
	Rate      = Metric{"messages_per_s", 1e-6, "M/s", true}
)

// Basis says which value a target applies to.
type Basis int

// The bases of targets.
const (
	OfRatio      Basis = iota // our figure ÷ the figure of the better peer
	OfDifference              // our figure minus the figure of the better peer
	OfFigure                  // our figure alone; the table shows peers for comparison
)

// Side is one of the compared programs.
type Side struct {
	Name string
	// Measure does one measurement and returns a figure for each line of the contest, in
	// their order. If it returns an error, it may return fewer figures.
	Measure func(ctx context.Context) ([]float64, error)
}

// Result is a line of a contest with the figures of all sides.
type Result struct {
	Line
	Sides []Figures // the first is ours
}

// Figures are the figures of one side for one line, one per round.
type Figures struct {
	Name   string
	Rounds []float64 // empty: the side failed
	Err    error     `json:"-"` // the failure after which the side was not measured again; nil: none
}

// Run measures every side once in each of the rounds, and returns a result for each line. A side that
// fails is not measured again, and keeps the figures that it has. Run returns an error only if ctx
// ends. It writes its progress and the failures to progress.
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

// Single returns a function for Side.Measure of a contest with one line. It returns the figure of
// measure.
func Single(measure func(ctx context.Context) (float64, error)) func(ctx context.Context) ([]float64, error) {
	return func(ctx context.Context) ([]float64, error) {
		x, err := measure(ctx)
		if err != nil {
			return nil, err
		}
		return []float64{x}, nil
	}
}

// Median returns the median of the figures. If there are none, it returns NaN.
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

// better returns the figures of the peer with the best median. If no peer has a figure, it returns nil.
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

// Best returns the median of the better peer. If no peer has a figure, it returns NaN.
func (r *Result) Best() float64 {
	if p := r.better(); p != nil {
		return p.Median()
	}
	return math.NaN()
}

// Ratio returns our figure ÷ the figure of the better peer. It is the median of the ratios in each
// round, because the speed of the machine changes between rounds. If the two sides have figures of
// different numbers of rounds, Ratio returns the ratio of their medians. If one of them has no
// figure, it returns NaN.
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

// Value returns the value that the target applies to. If a figure for it is missing, Value returns NaN.
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

// Verdict says whether the target of a result is met.
type Verdict string

// The verdicts.
const (
	Open   Verdict = "–" // there is no target, or no peer has a figure to compare with
	Met    Verdict = "yes"
	Missed Verdict = "no"
)

// Verdict compares Value with the target. If there is a target and our side has no figure, Verdict
// returns Missed.
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

// Bound returns the target as text, for example "≤ 0.8". If there is no target, it returns "–".
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

// Digits returns a figure as text, rounded to four significant digits and without an exponent. If
// the figure is NaN or infinite, it returns "–".
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
