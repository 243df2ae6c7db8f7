// Package contest lets several sides measure the same thing in turns, and says
// how the first of them compares. It also builds what is measured, runs it so that
// nothing of it is left, and tells what machine it ran on.
package contest

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
)

// A Contest is a few lines of a table that the same programs give at once.
type Contest struct {
	Name  string // what it is called while it runs
	Lines []Line
	Ours  Side
	Peers []Side // none: the targets are of our figures themselves
}

// Line says what the sides' figures mean and what ours must reach.
type Line struct {
	What   string
	Unit   string
	Target float64 // 0: there is none
	More   bool    // is better: the target is a least, else a most
	Of     Basis
}

// Basis is what a target is of.
type Basis int

// The bases of targets.
const (
	OfRatio      Basis = iota // our figure ÷ the better peer's
	OfDifference              // our figure less the better peer's
	OfFigure                  // our figure itself; peers are told beside it
)

// Side is one of those who are compared.
type Side struct {
	Name string
	// Measure gives a figure for each line, in their order. With an error it
	// may give fewer.
	Measure func(ctx context.Context) ([]float64, error)
}

// Result is a line with its figures.
type Result struct {
	Line
	Sides []Figures // ours first
}

// Figures are a side's, round by round.
type Figures struct {
	Name   string
	Rounds []float64 // empty: it failed
	Err    error     `json:"-"` // why it was not asked again; nil: it was
}

// Hold measures all sides in turns and returns the results of the lines. A side
// that fails is not asked again, and counts with what it has given. The error
// is that ctx has ended.
func (c *Contest) Hold(ctx context.Context, progress io.Writer, rounds int) ([]Result, error) {
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
			at := (round + i) % len(sides) // nobody is always first
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

// Single makes a Measure of a single figure.
func Single(measure func(ctx context.Context) (float64, error)) func(ctx context.Context) ([]float64, error) {
	return func(ctx context.Context) ([]float64, error) {
		x, err := measure(ctx)
		if err != nil {
			return nil, err
		}
		return []float64{x}, nil
	}
}

// Median is that of the rounds; NaN if there are none.
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

// better is the peer with the better median; nil if no peer has a figure.
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

// Best is the median of the better peer; NaN if no peer has a figure.
func (r *Result) Best() float64 {
	if p := r.better(); p != nil {
		return p.Median()
	}
	return math.NaN()
}

// Ratio is our figure ÷ the better peer's: the median of that within each round,
// since what a machine is like changes from round to round, or, where one of the
// two has not been through all of them, that of their medians. NaN: one has none.
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

// Value is what the target is of; NaN if a figure is missing.
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

// Verdict says whether a target was reached.
type Verdict string

// The verdicts.
const (
	Open   Verdict = "–" // there is no target, or nobody to compare with
	Met    Verdict = "yes"
	Missed Verdict = "no"
)

// Verdict compares the value with the target. Where we have no figure it is
// missed.
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

// Bound is the target as people write it.
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

// Digits writes a figure with four digits, and never with an exponent; "–" if it
// is missing.
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

// BytesText is a size as people say it.
func BytesText(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}
