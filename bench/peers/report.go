package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/weft-hpc/weft/bench/contest"
)

// report has all results of a run. -json writes it in JSON.
type report struct {
	Machine contest.Machine
	Rounds  int
	Time    string // duration of the measurement of one size
	Notes   []string
	Rows    []entry
}

// entry is a line of the table.
type entry struct {
	Bench string // name of the benchmark
	Ranks int
	Size  int
	// Counts is the unit of Size. If Counts is empty, the unit is bytes, and a Size of 0 means
	// that the benchmark has no sizes.
	Counts string `json:",omitempty"`
	contest.Result
}

// count returns how many rows have this verdict.
func (r *report) count(v contest.Verdict) int {
	n := 0
	for _, row := range r.Rows {
		if row.Verdict() == v {
			n++
		}
	}
	return n
}

// failure returns an error that names the benchmarks in which weft has no figure. If there are none, it
// returns nil.
func (r *report) failure() error {
	var failed []error
	for _, row := range r.Rows {
		if len(row.Sides[0].Rounds) == 0 {
			failed = append(failed, fmt.Errorf("%s of %d %s, %d ranks: weft fails", row.Bench, row.Size, cmp.Or(row.Counts, "bytes"), row.Ranks))
		}
	}
	return errors.Join(failed...)
}

// publish prints the table and writes the files that the flags name.
func (s *settings) publish(ctx context.Context, w io.Writer, r *report) error {
	if s.json != "" {
		text, err := json.MarshalIndent(r, "", "\t")
		if err == nil {
			err = os.WriteFile(s.json, append(text, '\n'), 0o644)
		}
		if err != nil {
			return err
		}
	}
	picture := ""
	if s.svg != "" {
		if err := r.draw(ctx, s.svg); err != nil {
			return err
		}
		picture = s.svg
	}
	if s.write != "" && picture != "" {
		var err error
		if picture, err = relative(filepath.Dir(s.write), s.svg); err != nil {
			return err
		}
	}
	text := r.markdown(picture)
	if s.write != "" {
		if err := insert(s.write, text); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, text)
	return err
}

// relative returns the path of a file relative to a folder.
func relative(folder, file string) (string, error) {
	from, err := filepath.Abs(folder)
	if err != nil {
		return "", err
	}
	to, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	path, err := filepath.Rel(from, to)
	return filepath.ToSlash(path), err
}

// columns are the peers that have a column in the table.
var columns = []string{"Open MPI", "MPICH"}

// markdown returns the report in Markdown. picture is the path of the picture to include; "": none.
func (r *report) markdown(picture string) string {
	var w strings.Builder
	fmt.Fprintf(&w, "%v.\n", r.Machine)
	fmt.Fprintf(&w, "Medians of %d rounds of %s per size, each of which measured every side. The ratio is weft ÷ the better peer: the median of the ratios within the rounds.\n", r.Rounds, r.Time)
	for _, note := range r.Notes {
		fmt.Fprintln(&w, note)
	}
	met, missed := r.count(contest.Met), r.count(contest.Missed)
	fmt.Fprintf(&w, "**%d of %d targets are met.**\n\n", met, met+missed)
	if picture != "" {
		fmt.Fprintf(&w, "![how many times as fast as the better peer](%s)\n\n", picture)
	}
	fmt.Fprintf(&w, "| benchmark | ranks | size | unit | weft | %s | ratio | target | met |\n", strings.Join(columns, " | "))
	fmt.Fprintf(&w, "|%s\n", strings.Repeat("---|", 8+len(columns)))
	for _, row := range r.Rows {
		fmt.Fprintln(&w, row.markdown())
	}
	return w.String()
}

func (e *entry) markdown() string {
	what, ratio := e.What, string(contest.Open)
	if x := e.Ratio(); e.Of == contest.OfRatio && !math.IsNaN(x) {
		ratio = fmt.Sprintf("%.2f", x)
	}
	cells := make([]string, len(columns))
	for i := range cells {
		cells[i] = string(contest.Open)
	}
	for _, peer := range e.Sides[1:] {
		known := false
		for i, name := range columns {
			if peer.Name == name {
				cells[i], known = contest.Digits(peer.Median()), true
			}
		}
		if !known {
			what += fmt.Sprintf(", %s: %s", peer.Name, contest.Digits(peer.Median()))
		}
	}
	return fmt.Sprintf("| %s | %d | %s | %s | **%s** | %s | %s | %s | %s |", what, e.Ranks, sizeText(e.Size, e.Counts), e.Unit,
		contest.Digits(e.Sides[0].Median()), strings.Join(cells, " | "), ratio, e.Bound(), e.Verdict())
}

// The markers of a page, each on a line of its own. insert replaces the text between them.
const (
	begin = "<!-- bench-peers: what make bench-peers writes begins -->\n"
	end   = "<!-- bench-peers: ends -->\n"
)

// insert replaces the text between the markers of a page.
func insert(file, text string) error {
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(page), begin)
	_, after, also := strings.Cut(rest, end)
	if !ok || !also {
		return fmt.Errorf("%s lacks the lines %q and %q", file, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return os.WriteFile(file, []byte(before+begin+"\n"+text+"\n"+end+after), 0o644)
}
