package main

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/weft-hpc/weft/comm"
)

// A line of the file belongs to the rank in whose share its first byte lies,
// so each rank moves both ends of its share on to the next line:
//
//	share of rank 0 │ share of rank 1 │ share of rank 2
//	name,x⏎ anna,1.5⏎ bert,2.5⏎ cleo,3.5⏎ dora,4.5⏎
//	├── rank 0 ──────────────┤├─ rank 1 ─┤├ rank 2 ┤
//
// Shares may hold no line at all. Cells are those of encoding/csv, quoted ones
// included, except that a line break within quotes is an error: who starts
// within the file cannot tell it from the end of a row.

// column is what a rank knows of a column.
type column struct {
	index                   int // in a row
	name                    string
	numbers, missing, other int64 // cells, by kind
	sum, squares            accumulator
	min, max                float64
}

// statistics prints the statistics of the columns of a file.
func statistics(c *comm.Comm, path, header, wanted string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	// The ranks' shares fit each other even if the file is growing.
	size := []int64{0}
	if c.Rank() == 0 {
		info, err := f.Stat()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is no regular file", path)
		}
		size[0] = info.Size()
	}
	if err := comm.Bcast(c, size, 0); err != nil {
		return err
	}
	cols, width, data, err := readHeader(f, size[0], header, wanted)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	var bounds [2]int64
	for i := range bounds {
		at, err := lineFrom(f, share(size[0], c.Rank()+i, c.Size()), size[0])
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		bounds[i] = max(at, data)
	}
	rows, err := readRows(io.NewSectionReader(f, bounds[0], bounds[1]-bounds[0]), bounds[0], width, cols)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if rows, err = reduce(c, rows, cols); err != nil || c.Rank() != 0 {
		return err
	}
	return report(os.Stdout, rows, cols)
}

// share is where rank's share of size bytes begins.
func share(size int64, rank, ranks int) int64 {
	q, r := size/int64(ranks), size%int64(ranks)
	return q*int64(rank) + r*int64(rank)/int64(ranks)
}

// lineFrom returns the position of the first line that begins at or after at.
func lineFrom(f io.ReaderAt, at, size int64) (int64, error) {
	if at == 0 || at >= size {
		return min(at, size), nil
	}
	at-- // a line begins at at if the byte before ends one
	r := bufio.NewReader(io.NewSectionReader(f, at, size-at))
	for {
		part, err := r.ReadSlice('\n')
		at += int64(len(part))
		switch {
		case err == nil || errors.Is(err, io.EOF):
			return at, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return 0, err
		}
	}
}

// readHeader reads the first row. It returns the columns that are wanted, how
// many there are in all, and where the data begin.
func readHeader(f io.ReaderAt, size int64, header, wanted string) (cols []*column, width int, data int64, err error) {
	var mark [3]byte
	if n, _ := f.ReadAt(mark[:], 0); n == 3 && string(mark[:]) == "\ufeff" {
		data = 3 // a byte order mark is no part of the first name
	}
	r := csv.NewReader(io.NewSectionReader(f, data, size-data))
	row, err := r.Read()
	if errors.Is(err, io.EOF) {
		return nil, 0, 0, errors.New("the file holds no row")
	} else if err != nil {
		return nil, 0, 0, err
	}
	named := header == "yes" || header == "auto" && !slices.ContainsFunc(row, func(cell string) bool {
		_, ok := number(cell)
		return ok
	})
	if named {
		data += r.InputOffset()
	}
	var names []string
	for i := range row {
		names = append(names, strconv.Itoa(i+1))
		if named && strings.TrimSpace(row[i]) != "" {
			names[i] = strings.TrimSpace(row[i])
		}
	}
	want := names
	if wanted != "" {
		want = strings.Split(wanted, ",")
	}
	for i, name := range want {
		at := i
		if wanted != "" {
			if at = slices.Index(names, strings.TrimSpace(name)); at < 0 {
				return nil, 0, 0, fmt.Errorf("no column %q among %q", name, names)
			}
		}
		cols = append(cols, &column{index: at, name: names[at], min: math.Inf(1), max: math.Inf(-1)})
	}
	return cols, len(row), data, nil
}

// number parses a cell. What is not finite is no number.
func number(cell string) (float64, bool) {
	x, err := strconv.ParseFloat(strings.TrimSpace(cell), 64)
	return x + 0, err == nil && !math.IsInf(x, 0) && !math.IsNaN(x) // -0 becomes 0
}

// readRows adds all rows of r, which begins at byte at of the file.
func readRows(r io.Reader, at int64, width int, cols []*column) (rows int64, err error) {
	lines := csv.NewReader(r)
	lines.FieldsPerRecord = -1
	lines.ReuseRecord = true
	for {
		from := at + lines.InputOffset()
		row, err := lines.Read()
		switch {
		case errors.Is(err, io.EOF):
			return rows, nil
		case errors.Is(err, csv.ErrQuote) || errors.Is(err, csv.ErrBareQuote):
			return 0, fmt.Errorf("row at byte %d: a quote that is stray, open, or around a line break", from)
		case err != nil:
			return 0, fmt.Errorf("row at byte %d: %w", from, err)
		case len(row) > width:
			return 0, fmt.Errorf("row at byte %d has %d cells, and the first row %d", from, len(row), width)
		}
		for _, cell := range row {
			if strings.Contains(cell, "\n") {
				return 0, fmt.Errorf("row at byte %d: a line break within quotes", from)
			}
		}
		rows++
		for _, c := range cols {
			c.add(row)
		}
	}
}

func (c *column) add(row []string) {
	if c.index >= len(row) || strings.TrimSpace(row[c.index]) == "" {
		c.missing++
		return
	}
	x, ok := number(row[c.index])
	if !ok {
		c.other++
		return
	}
	c.numbers++
	c.sum.add(x)
	c.squares.addSquare(x)
	c.min, c.max = min(c.min, x), max(c.max, x)
}

// reduce combines what the ranks found, at rank 0. Everything that is added up
// is integers, so that it does not matter who read what.
func reduce(c *comm.Comm, rows int64, cols []*column) (int64, error) {
	sums := []int64{rows}
	var mins, maxs []float64
	for _, col := range cols {
		col.sum.carry()
		col.squares.carry()
		sums = append(sums, col.numbers, col.missing, col.other)
		sums = append(append(sums, col.sum.limbs[:]...), col.squares.limbs[:]...)
		mins, maxs = append(mins, col.min), append(maxs, col.max)
	}
	err := errors.Join(comm.Reduce(c, sums, sums, comm.Sum, 0),
		comm.Reduce(c, mins, mins, comm.Min, 0), comm.Reduce(c, maxs, maxs, comm.Max, 0))
	if err != nil || c.Rank() != 0 {
		return 0, err
	}
	rest := sums[1:]
	for i, col := range cols {
		col.numbers, col.missing, col.other = rest[0], rest[1], rest[2]
		rest = rest[3+copy(col.sum.limbs[:], rest[3:]):]
		rest = rest[copy(col.squares.limbs[:], rest):]
		col.min, col.max = mins[i], maxs[i]
	}
	return sums[0], nil
}

// report prints the table.
func report(w io.Writer, rows int64, cols []*column) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "column\tcount\tmean\tstddev\tmin\tmax\tmissing\tnot numeric")
	var texts []string
	for _, c := range cols {
		if c.numbers == 0 {
			texts = append(texts, fmt.Sprintf("%q (%d cells, %d missing)", c.name, c.other, c.missing))
			continue
		}
		mean, deviation := moments(&c.sum, &c.squares, c.numbers)
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%d\t%d\n", c.name, c.numbers, text(mean), text(deviation), text(c.min), text(c.max), c.missing, c.other)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "%d rows\n", rows)
	if len(texts) > 0 {
		fmt.Fprintf(w, "without a number: %s\n", strings.Join(texts, ", "))
	}
	return nil
}

func text(x float64) string {
	if math.IsNaN(x) {
		return "-"
	}
	return strconv.FormatFloat(x, 'g', -1, 64)
}
