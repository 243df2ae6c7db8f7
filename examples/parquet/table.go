package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

// table is an open Parquet file.
type table struct {
	file    *os.File
	id      identity
	rows    int64
	groups  []parquet.RowGroup
	columns []column
}

// identity distinguishes files. It has no pointers, so a rank can send it as it is in memory.
type identity struct {
	size int64
	sum  [sha256.Size]byte // of the file's end, which describes all of its row groups
}

// column describes a column that has values, rather than other columns.
type column struct {
	name, kind string
	typ        parquet.Type
	ordered    bool // typ.Compare knows the order of the values
	unsigned   bool
	digits     int // decimals: digits after the point

	// Dates and timestamps: the time that a number stands for, the unit of numbers in seconds, and
	// the layout for package time. For other columns at is nil.
	at     func(int64) time.Time
	unit   float64
	layout string
}

// openTable opens a file and reads its description. The file has at least one row group.
func openTable(name string) (t *table, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			t, err = nil, errors.Join(fmt.Errorf("%s: %w", name, err), f.Close())
		}
	}()
	defer recovered(&err)
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	size := info.Size()
	p, err := parquet.OpenFile(f, size, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
	if err != nil {
		return nil, err
	}
	const end = 64 << 10
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(f, max(0, size-end), end)); err != nil {
		return nil, err
	}
	t = &table{file: f, rows: p.NumRows(), groups: p.RowGroups()}
	t.id.size = size
	copy(t.id.sum[:], h.Sum(nil))
	if len(t.groups) == 0 {
		return nil, errors.New("the file has no row groups")
	}
	for _, path := range p.Schema().Columns() {
		leaf, _ := p.Schema().Lookup(path...)
		col := newColumn(strings.Join(path, "."), leaf.Node.Type())
		if col.digits < 0 || col.digits > 76 {
			return nil, fmt.Errorf("column %s: a decimal with %d digits after the point", col.name, col.digits)
		}
		t.columns = append(t.columns, col)
	}
	return t, nil
}

// close closes the file. The error does not matter, because the file is only read.
func (t *table) close() { _ = t.file.Close() }

// recovered turns a panic of the Parquet library, which a damaged file may cause, into an error.
func recovered(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("cannot decode the file: %v", r)
	}
}

// read adds the values of row group i to a summary.
func (t *table) read(i int, s *summary) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: row group %d: %w", t.file.Name(), i, err)
		}
	}()
	defer recovered(&err)
	chunks := t.groups[i].ColumnChunks()
	if len(chunks) != len(t.columns) {
		return fmt.Errorf("%d columns, but the file has %d", len(chunks), len(t.columns))
	}
	for col, chunk := range chunks {
		if err := s.addChunk(col, chunk); err != nil {
			return fmt.Errorf("column %s: %w", t.columns[col].name, err)
		}
	}
	return nil
}

func newColumn(name string, typ parquet.Type) column {
	kind := typ.Kind()
	c := column{name: name, kind: kind.String(), typ: typ, ordered: kind != parquet.Int96}
	if logical := typ.LogicalType(); logical != nil && logical.Value != nil {
		c.kind, _, _ = strings.Cut(logical.String(), "(")
		switch l := logical.Value.(type) {
		case *format.IntType:
			c.unsigned = !l.IsSigned
		case *format.DecimalType:
			c.digits = int(l.Scale)
			c.ordered = kind == parquet.Int32 || kind == parquet.Int64
		case *format.DateType:
			c.at = func(n int64) time.Time { return time.Unix(86400*n, 0) }
			c.unit, c.layout = 86400, time.DateOnly
		case *format.TimestampType:
			c.layout = "2006-01-02T15:04:05.999999999"
			switch l.Unit.Value.(type) {
			case *format.MilliSeconds:
				c.at, c.unit = time.UnixMilli, 1e-3
			case *format.MicroSeconds:
				c.at, c.unit = time.UnixMicro, 1e-6
			case *format.NanoSeconds:
				c.at, c.unit = func(n int64) time.Time { return time.Unix(0, n) }, 1e-9
			}
		}
	}
	return c
}

// integer returns a value of kind Int32 or Int64. Unsigned integers of 64 bits keep their bits.
func (c *column) integer(v parquet.Value) int64 {
	switch {
	case v.Kind() == parquet.Int64:
		return v.Int64()
	case c.unsigned:
		return int64(v.Uint32())
	}
	return int64(v.Int32())
}

// number returns the number of which the mean is made. ok is false for strings and other bytes.
func (c *column) number(v parquet.Value) (x float64, ok bool) {
	switch v.Kind() {
	case parquet.Boolean:
		if v.Boolean() {
			x = 1
		}
	case parquet.Float:
		x = float64(v.Float())
	case parquet.Double:
		x = v.Double()
	case parquet.Int32, parquet.Int64:
		if x = float64(c.integer(v)) / math.Pow10(c.digits); c.unsigned {
			x = float64(uint64(c.integer(v)))
		}
	default:
		return 0, false
	}
	return x, true
}

// text returns a value as the table shows it. Long strings are cut.
func (c *column) text(v parquet.Value) string {
	const most = 24
	switch v.Kind() {
	case parquet.Int32, parquet.Int64:
		n := new(big.Int).SetInt64(c.integer(v))
		if c.at != nil {
			return c.at(n.Int64()).UTC().Format(c.layout)
		}
		if c.unsigned {
			n.SetUint64(uint64(c.integer(v)))
		}
		one := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(c.digits)), nil)
		return new(big.Rat).SetFrac(n, one).FloatString(c.digits)
	case parquet.ByteArray:
		if r := []rune(v.String()); len(r) > most {
			return strconv.Quote(string(r[:most])) + "…"
		}
		return strconv.Quote(v.String())
	case parquet.FixedLenByteArray:
		return fmt.Sprintf("%x", v.ByteArray()[:min(most, len(v.ByteArray()))])
	default:
		return v.String()
	}
}

// report writes the statistics as a table.
func report(w io.Writer, t *table, s *summary) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "column\ttype\tvalues\tnulls\tnot finite\tmin\tmax\tmean\tstddev")
	for i := range t.columns {
		c, st, b := &t.columns[i], &s.stats[i], s.bounds[i]
		low, high, mean, deviation := "-", "-", "-", "-"
		if b.Known {
			low, high = c.text(c.typ.Kind().Value(b.Min)), c.text(c.typ.Kind().Value(b.Max))
		}
		if st.Finite > 0 && c.at != nil {
			mean = c.at(int64(math.Round(st.Mean))).Round(time.Millisecond).UTC().Format(c.layout)
			deviation = fmt.Sprintf("%.6g s", st.deviation()*c.unit)
		} else if st.Finite > 0 {
			mean, deviation = fmt.Sprintf("%.8g", st.Mean), fmt.Sprintf("%.8g", st.deviation())
		}
		if st.Finite < 2 {
			deviation = "-"
		}
		fmt.Fprintf(out, "%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s\t%s\n",
			c.name, c.kind, st.Values, st.Nulls, st.NotFinite, low, high, mean, deviation)
	}
	fmt.Fprintf(out, "%d rows in %d row groups\n", t.rows, len(t.groups))
	return out.Flush()
}
