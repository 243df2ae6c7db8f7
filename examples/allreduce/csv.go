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

// The file's bytes are divided evenly: each rank has a share. A line belongs to the rank whose share
// contains the line's first byte. So each rank moves the beginning and the end of its share forward to the
// next beginning of a line:
//
//	share of rank 0 │ share of rank 1 │ share of rank 2
//	name,x⏎ anna,1.5⏎ bert,2.5⏎ cleo,3.5⏎ dora,4.5⏎
//	├── rank 0 ──────────────┤├─ rank 1 ─┤├ rank 2 ┤
//
// A rank may have no line. The format is that of encoding/csv, also with quotes. The exception is a line
// break within quotes, which is an error here: a rank that begins in the middle of the file cannot
// distinguish such a line break from the end of a row.

// column holds a rank's results for one column.
type column struct {
	index                   int // index of the column in a row
	name                    string
	numbers, missing, other int64 // how many cells have a number, are empty or absent, and have another text
	sum, squares            accumulator
	min, max                float64
}

// statistics reads a file on all ranks, and prints the statistics of its columns on rank 0. header and wanted
// are the values of the flags -header and -columns.
func statistics(c *comm.Comm, path, header, wanted string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // the error does not matter, because the file is only read
	// All ranks use the size that rank 0 sees, because the file may grow meanwhile.
	size := []int64{0}
	if c.Rank() == 0 {
		info, err := f.Stat()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is not a regular file", path)
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

// share returns the position at which the rank's share of a file of size bytes begins.
func share(size int64, rank, ranks int) int64 {
	q, r := size/int64(ranks), size%int64(ranks)
	return q*int64(rank) + r*int64(rank)/int64(ranks)
}

// lineFrom returns the position of the first line that begins at the position at or after it. If
// there is no such line, it returns size.
func lineFrom(f io.ReaderAt, at, size int64) (int64, error) {
	if at == 0 || at >= size {
		return min(at, size), nil
	}
	at-- // read from the byte before on: if that byte is a line break, a line begins at the position at
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

// readHeader reads the first row of the file. It returns the wanted columns, the number of all columns, and
// the position in the file at which the rows of data begin.
func readHeader(f io.ReaderAt, size int64, header, wanted string) (cols []*column, width int, data int64, err error) {
	var mark [3]byte
	if n, _ := f.ReadAt(mark[:], 0); n == 3 && string(mark[:]) == "\ufeff" {
		data = 3 // skip the byte order mark, which is not part of the first column's name
	}
	r := csv.NewReader(io.NewSectionReader(f, data, size-data))
	row, err := r.Read()
	if errors.Is(err, io.EOF) {
		return nil, 0, 0, errors.New("the file has no rows")
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
				return nil, 0, 0, fmt.Errorf("no column %q; the columns are %q", name, names)
			}
		}
		cols = append(cols, &column{index: at, name: names[at], min: math.Inf(1), max: math.Inf(-1)})
	}
	return cols, len(row), data, nil
}

// number parses a cell of the file. If the cell is not a finite number, number returns false.
func number(cell string) (float64, bool) {
	x, err := strconv.ParseFloat(strings.TrimSpace(cell), 64)
	return x + 0, err == nil && !math.IsInf(x, 0) && !math.IsNaN(x) // -0 becomes 0
}

// readRows adds the rows in r to the statistics of cols, and returns the number of rows. r begins at the
// position at of the file.
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
			return 0, fmt.Errorf("row at byte %d: a quote is not closed, is within a cell, or is around a line break", from)
		case err != nil:
			return 0, fmt.Errorf("row at byte %d: %w", from, err)
		case len(row) > width:
			return 0, fmt.Errorf("row at byte %d has %d cells, but the first row has %d", from, len(row), width)
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

// add adds the cell that a row has in the column c to the column's statistics.
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

// reduce combines the results of the ranks at rank 0, and returns the number of rows. All sums are
// of integers, so the result does not depend on how the rows are distributed.
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

// report prints the statistics as a table.
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
