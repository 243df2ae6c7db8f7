package main

import (
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/parquet-go/parquet-go"

	"github.com/weft-hpc/weft/comm"
)

// summary has what a rank knows about the columns, from the row groups that it has read.
type summary struct {
	columns []column
	stats   []stats  // by column
	bounds  []bounds // by column
	buf     []byte   // the bytes of one value
}

// stats are the statistics of a column that have a fixed size. The struct has no pointers, so
// Reduce can send it as it is in memory.
type stats struct {
	Values, Nulls, NotFinite int64   // NotFinite of the values are NaN or infinite
	Finite                   int64   // how many values Mean and M2 include
	Mean, M2                 float64 // M2 is the sum of the squares of the distances from Mean
}

// bounds are the least and the greatest value of a column other than NaN, in Parquet's plain
// encoding.
type bounds struct {
	Known    bool // there is such a value
	Min, Max []byte
}

func newSummary(columns []column) *summary {
	n := len(columns)
	return &summary{columns: columns, stats: make([]stats, n), bounds: make([]bounds, n)}
}

// addChunk adds the values that one row group has in a column.
func (s *summary) addChunk(col int, chunk parquet.ColumnChunk) (err error) {
	r := parquet.NewColumnChunkValueReader(chunk)
	defer func() { err = errors.Join(err, r.Close()) }()
	values := make([]parquet.Value, 512)
	for left := chunk.NumValues(); ; {
		n, err := r.ReadValues(values)
		for _, v := range values[:n] {
			s.add(col, v)
		}
		left -= int64(n)
		switch {
		case errors.Is(err, io.EOF) && left == 0:
			return nil
		case errors.Is(err, io.EOF) || left < 0 || n == 0 && err == nil:
			return fmt.Errorf("%d values, but the file's footer says %d",
				chunk.NumValues()-left, chunk.NumValues())
		case err != nil:
			return err
		}
	}
}

// add adds one value by the method of Welford (1962), which stays accurate if the mean is large and
// the deviation is small.
func (s *summary) add(col int, v parquet.Value) {
	st := &s.stats[col]
	if v.IsNull() {
		st.Nulls++
		return
	}
	st.Values++
	if x, ok := s.columns[col].number(v); ok {
		switch {
		case math.IsNaN(x):
			st.NotFinite++
			return // NaN is neither less nor greater than other values
		case math.IsInf(x, 0):
			st.NotFinite++
		default:
			st.Finite++
			d := x - st.Mean
			st.Mean += d / float64(st.Finite)
			st.M2 += d * (x - st.Mean)
		}
	}
	if !s.columns[col].ordered {
		return
	}
	s.buf = v.AppendBytes(s.buf[:0])
	s.bounds[col].extend(s.columns[col].typ, v, s.buf)
}

// extend makes the bounds include the value v, which has these bytes.
func (b *bounds) extend(typ parquet.Type, v parquet.Value, encoded []byte) {
	if !b.Known || typ.Compare(v, typ.Kind().Value(b.Min)) < 0 {
		b.Min = append(b.Min[:0], encoded...)
	}
	if !b.Known || typ.Compare(v, typ.Kind().Value(b.Max)) > 0 {
		b.Max = append(b.Max[:0], encoded...)
	}
	b.Known = true
}

// reduce combines the summaries of all ranks on rank 0. Other ranks get an incomplete one. It is
// collective.
func (s *summary) reduce(c *comm.Comm) (*summary, error) {
	total := newSummary(s.columns)
	err := comm.Reduce(c, s.stats, total.stats, comm.OpFunc(true, func(inout, in []stats) {
		for i := range in {
			inout[i].merge(&in[i])
		}
	}), 0)
	if err != nil {
		return nil, err
	}
	total.bounds, err = comm.ReduceValue(c, s.bounds, s.mergeBounds, 0)
	return total, err
}

// merge adds the values of b to a by the method of Chan, Golub and LeVeque (1979).
func (a *stats) merge(b *stats) {
	a.Values, a.Nulls, a.NotFinite = a.Values+b.Values, a.Nulls+b.Nulls, a.NotFinite+b.NotFinite
	if b.Finite == 0 {
		return
	}
	na, nb := float64(a.Finite), float64(b.Finite)
	d := b.Mean - a.Mean
	a.Finite += b.Finite
	a.Mean += d * (nb / (na + nb))
	a.M2 += b.M2 + d*d*(na*nb/(na+nb))
}

// mergeBounds makes a include b.
func (s *summary) mergeBounds(a, b []bounds) []bounds {
	for i, col := range s.columns {
		if kind := col.typ.Kind(); b[i].Known {
			a[i].extend(col.typ, kind.Value(b[i].Min), b[i].Min)
			a[i].extend(col.typ, kind.Value(b[i].Max), b[i].Max)
		}
	}
	return a
}

// deviation returns the standard deviation of a sample, or 0 if there are less than two numbers.
func (a *stats) deviation() float64 { return math.Sqrt(a.M2 / float64(max(1, a.Finite-1))) }

// same returns an error if a column of s differs from that of t. Means and deviations may differ by
// what rounding can cause, because the ranks combine values in another order.
func (s *summary) same(t *summary, col int) error {
	a, b := s.stats[col], t.stats[col]
	x := a
	x.Mean, x.M2 = b.Mean, b.M2
	if x != b {
		return fmt.Errorf("counts %+v, want %+v", a, b)
	}
	most := 1e-9 * (math.Abs(b.Mean) + b.deviation())
	if math.Abs(a.Mean-b.Mean) > most || math.Abs(a.deviation()-b.deviation()) > most {
		return fmt.Errorf("mean %v and deviation %v, want %v and %v",
			a.Mean, a.deviation(), b.Mean, b.deviation())
	}
	got, want, typ := s.bounds[col], t.bounds[col], s.columns[col].typ
	differ := func(x, y []byte) bool { // 0 and -0 do not
		return typ.Compare(typ.Kind().Value(x), typ.Kind().Value(y)) != 0
	}
	if got.Known != want.Known || got.Known && (differ(got.Min, want.Min) || differ(got.Max, want.Max)) {
		return fmt.Errorf("bounds %q and %q, want %q and %q", got.Min, got.Max, want.Min, want.Max)
	}
	return nil
}
