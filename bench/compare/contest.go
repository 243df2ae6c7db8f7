package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
)

// contest is one line of the table.
type contest struct {
	name, what, unit string

	ours  side
	peers []side // none: the target is our figure itself, not a ratio

	target     float64
	more       bool // is better: the target is a least, else a most
	difference bool // the target is of our figure less the better peer's, else of their ratio
}

// side is one of those who are compared.
type side struct {
	name string
	run  func(ctx context.Context) (float64, error) // measures once
}

// hold measures all sides in turns, prints the line and says whether the
// target was met. A peer that fails is not asked again, and is compared with by
// what it has given; without any the line says so and the target counts as met.
func (c *contest) hold(ctx context.Context, w, progress io.Writer, rounds int) (met bool, err error) {
	sides := append([]side{c.ours}, c.peers...)
	figures := make([][]float64, len(sides))
	failed := make([]error, len(sides))
	for round := range rounds {
		for i := range sides {
			at := (round + i) % len(sides) // nobody is always first
			if failed[at] != nil {
				continue
			}
			x, err := sides[at].run(ctx)
			switch {
			case err == nil:
				figures[at] = append(figures[at], x)
			case at == 0 || ctx.Err() != nil:
				return false, fmt.Errorf("%s: %w", sides[at].name, err)
			default:
				failed[at] = err
				fmt.Fprintf(progress, "%s: %s: %v\n", c.what, sides[at].name, err)
			}
		}
		fmt.Fprintf(progress, "%s: round %d of %d\n", c.name, round+1, rounds)
	}
	own := median(figures[0])
	var peers []string
	best, rivals := 0.0, 0
	for i, p := range c.peers {
		if len(figures[i+1]) == 0 {
			peers = append(peers, p.name+" fails")
			continue
		}
		m := median(figures[i+1])
		peers = append(peers, p.name+" "+spread(figures[i+1]))
		if rivals == 0 || m > best == c.more {
			best = m
		}
		rivals++
	}
	ratio, target := "–", fmt.Sprintf("%g", c.target)
	figure := own
	switch {
	case len(c.peers) > 0 && rivals == 0:
		fmt.Fprintf(w, "| %s | %s | %s | %s | – | – | – |\n", c.what, c.unit, spread(figures[0]), strings.Join(peers, "; "))
		return true, nil
	case len(c.peers) > 0 && c.difference:
		figure = own - best
		ratio = fmt.Sprintf("%.2f (%+.2f %s)", own/best, figure, c.unit)
		target = fmt.Sprintf("%+g %s", c.target, c.unit)
	case len(c.peers) > 0:
		figure = own / best
		ratio = fmt.Sprintf("%.2f", figure)
	}
	met = figure <= c.target
	sign := "≤"
	if c.more {
		met, sign = figure >= c.target, "≥"
	}
	verdict := map[bool]string{true: "yes", false: "no"}[met]
	fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s %s | %s |\n", c.what, c.unit, spread(figures[0]), strings.Join(peers, "; "), ratio, sign, target, verdict)
	return met, nil
}

func median(xs []float64) float64 {
	s := slices.Sorted(slices.Values(xs))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// spread is the median and the range.
func spread(xs []float64) string {
	return fmt.Sprintf("**%.4g** (%.4g–%.4g)", median(xs), slices.Min(xs), slices.Max(xs))
}
