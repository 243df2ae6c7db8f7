package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/weft-hpc/weft/bench/contest"
	"github.com/weft-hpc/weft/internal/tempdir"
)

// The input of the program bench/peers/plot, which is encoded in JSON. plot's main.go has the same
// types. plot is a module of its own, so that weft's module does not require the plotting library.
type (
	picture struct {
		Title  string  `json:"title"`
		Panels []panel `json:"panels"`
	}
	panel struct {
		Title  string   `json:"title"`
		Y      string   `json:"y"`
		Log    bool     `json:"log,omitempty"`    // the axis of y is logarithmic
		Labels []string `json:"labels,omitempty"` // the labels of x = 0, 1 …; empty: x is a number of bytes
		Series []series `json:"series"`
	}
	series struct {
		Name   string       `json:"name"`
		Target bool         `json:"target,omitempty"` // the points are targets, not figures
		Points [][2]float64 `json:"points"`           // x and y of each point
	}
)

// draw runs the program plot, which draws the picture of the report and writes it to file as SVG.
func (r *report) draw(ctx context.Context, file string) (err error) {
	root, err := contest.Root(ctx)
	if err != nil {
		return err
	}
	text, err := json.Marshal(r.picture())
	if err != nil {
		return err
	}
	dir, err := tempdir.Make("weft-picture-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Remove()) }()
	description := filepath.Join(dir.Path, "picture.json")
	if err := os.WriteFile(description, text, 0o644); err != nil {
		return err
	}
	if file, err = filepath.Abs(file); err != nil {
		return err
	}
	_, err = contest.Output(ctx, "go", "-C", filepath.Join(root, "bench", "peers", "plot"), "run", ".", "-o", file, description)
	return err
}

// picture returns the picture of the report. It has a panel for each benchmark of messages or
// collectives with several sizes in bytes (bw and bibw share one), one for the benchmarks with
// goroutines, one for those of applications, one for some others, and one for the overlap. It
// leaves out panels without figures.
func (r *report) picture() picture {
	p := picture{Title: "weft against the better of Open MPI and MPICH: how many times as fast"}
	for _, group := range [][]string{{"latency"}, {"bw", "bibw"}, {"bcast"}, {"reduce"}, {"allreduce"}, {"alltoall"}, {"allgather"}} {
		p.add(r.bySize(group))
	}
	p.add(r.singles("many goroutines", "threads", "waiters"))
	p.add(r.singles("after computation", "compute", "jacobi", "cg"))
	p.add(r.singles("others", "barrier", "mr", "put_latency", "get_latency", "start"))
	p.add(r.overlap())
	return p
}

// add adds a panel to the picture, if the panel has a point that is not a target.
func (p *picture) add(one panel) {
	one.Series = slices.DeleteFunc(one.Series, func(s series) bool { return len(s.Points) == 0 })
	if slices.ContainsFunc(one.Series, func(s series) bool { return !s.Target }) {
		p.Panels = append(p.Panels, one)
	}
}

// find returns the series with this name. If there is none, find adds an empty one and returns it.
func (p *panel) find(name string, target bool) *series {
	for i := range p.Series {
		if p.Series[i].Name == name {
			return &p.Series[i]
		}
	}
	p.Series = append(p.Series, series{Name: name, Target: target})
	return &p.Series[len(p.Series)-1]
}

func (s *series) add(x, y float64) {
	// y is not above 0 if the figure is missing, and a logarithmic axis has no 0.
	if y > 0 && !math.IsInf(y, 0) {
		s.Points = append(s.Points, [2]float64{x, y})
	}
}

// faster returns how many times as fast weft is as a peer, if weft's figure ÷ the peer's figure is
// ratio.
func (e *entry) faster(ratio float64) float64 {
	if e.More {
		return ratio
	}
	return 1 / ratio
}

// of returns the entries of the report for a benchmark.
func (r *report) of(bench string) []entry {
	return slices.DeleteFunc(slices.Clone(r.Rows), func(e entry) bool { return e.Bench != bench })
}

const timesAsFast = "times as fast"

func (r *report) bySize(benches []string) panel {
	p := panel{Title: benches[0], Y: timesAsFast, Log: true}
	for _, bench := range benches {
		for _, e := range r.of(bench) {
			p.Title = r.of(benches[0])[0].What
			name := fmt.Sprintf("%d ranks", e.Ranks)
			if len(benches) > 1 {
				name = e.What
			}
			p.find(name, false).add(float64(e.Size), e.faster(e.Ratio()))
			if e.Target > 0 && e.Ranks == 2 {
				p.find("target", true).add(float64(e.Size), e.faster(e.Target))
			}
		}
	}
	return p
}

func (r *report) singles(title string, benches ...string) panel {
	p := panel{Title: title, Y: timesAsFast, Log: true}
	for _, bench := range benches {
		for _, e := range r.of(bench) {
			x := float64(len(p.Labels))
			label := fmt.Sprintf("%s, %d", bench, e.Ranks)
			if e.Counts != "" {
				label = bench + ", " + sizeText(e.Size, e.Counts)
			}
			p.Labels = append(p.Labels, label)
			p.find("weft", false).add(x, e.faster(e.Ratio()))
			if e.Target > 0 {
				p.find("target", true).add(x, e.faster(e.Target))
			}
		}
	}
	return p
}

func (r *report) overlap() panel {
	p := panel{Title: "overlap of Iallreduce", Y: "%"}
	for _, e := range r.of("iallreduce-overlap") {
		for _, side := range e.Sides {
			if x := side.Median(); !math.IsNaN(x) {
				s := p.find(side.Name, false)
				s.Points = append(s.Points, [2]float64{float64(e.Size), x})
			}
		}
		p.find("target", true).add(float64(e.Size), e.Target)
	}
	return p
}
