// Parquet teaches reductions of structs and of Go values, and a counter that shares out work. The
// ranks read the row groups of a Parquet file, and combine statistics of its columns. Rank 0 prints
// them.
//
//	gorun -np 4 ./examples/parquet -make -check
//	gorun -np 4 ./examples/parquet -file data.parquet
//
// Row groups differ in size, so a rank that has read one gets the next from a counter of package
// psync. Counts, means and sums of squares have a fixed size: Reduce combines them in a tree, by a
// function of the program. The least and the greatest value of a column may be strings of any
// length: ReduceValue sends them by gob.
//
// Columns of strings and other bytes have no mean; that of booleans is the fraction of true. Means
// and deviations leave out NaN and infinite values. INT96 and decimals in bytes have no least and
// greatest value here, because the library does not know their order. With -check rank 0 also reads
// the whole file by itself, and compares.
//
// The program is a module of its own, so that no other program of weft needs a library for Parquet.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/psync"
	"github.com/weft-hpc/weft/examples/internal/args"
)

func main() {
	name := flag.String("file", "sample.parquet", "name of the `file`")
	write := flag.Bool("make", false, "first write the file, with made-up rows; replaces an existing file")
	rows := flag.Int("rows", 100000, "number of `rows` that -make writes")
	group := flag.Int("group", 8000, "number of `rows` in each row group that -make writes")
	check := flag.Bool("check", false, "compare the statistics with those of a serial pass")
	comm.Main(func(c *comm.Comm) error {
		args.Parse(c, "-rows >= 0, -group >= 1 and no arguments", func() bool {
			return flag.NArg() > 0 || *rows < 0 || *group < 1
		})
		if *write {
			var err error
			if c.Rank() == 0 {
				err = writeSample(*name, *rows, *group)
			}
			if err := agree(c, err); err != nil {
				return err
			}
		}
		return statistics(c, *name, *check, os.Stdout)
	})
}

// agree returns an error on all ranks if err is not nil on some rank: that rank returns its err,
// and the others return the error of the lowest such rank. So no rank enters a collective without
// the others. agree is collective.
func agree(c *comm.Comm, err error) error {
	var text string
	if err != nil {
		text = err.Error()
	}
	all, failed := comm.AllgatherValue(c, text)
	if err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	for rank, text := range all {
		if text != "" {
			return fmt.Errorf("rank %d: %s", rank, text)
		}
	}
	return nil
}

// statistics reads the file on all ranks. On rank 0 it writes the statistics of the columns to w,
// and checks them if check is set.
func statistics(c *comm.Comm, name string, check bool, w io.Writer) error {
	f, err := openTable(name)
	if err == nil {
		defer f.close()
	}
	if err := agree(c, err); err != nil {
		return err
	}
	// A file of the same name may be another one on another host.
	id := []identity{f.id}
	if err := comm.Bcast(c, id, 0); err != nil {
		return err
	}
	if id[0] != f.id {
		err = fmt.Errorf("%s is not the file that rank 0 has: %d bytes here, %d bytes there",
			name, f.id.size, id[0].size)
	}
	if err := agree(c, err); err != nil {
		return err
	}
	s, err := readShare(c, f)
	if err != nil {
		return err
	}
	if s, err = s.reduce(c); err != nil {
		return err
	}
	if c.Rank() == 0 {
		if err = report(w, f, s); err == nil && check {
			err = verify(f, s)
		}
	}
	if err = agree(c, err); err == nil && check && c.Rank() == 0 {
		_, err = fmt.Fprintf(w, "%d ranks: equal to the serial pass\n", c.Size())
	}
	return err
}

// readShare reads row groups until all of them have been read by some rank, and returns the summary
// of those that this rank has read. It is collective. If a rank cannot read a group, no rank begins
// another one, and all return an error.
func readShare(c *comm.Comm, f *table) (*summary, error) {
	next, err := psync.NewCounter(c, 0)
	if err != nil {
		return nil, err
	}
	s := newSummary(f.columns)
	for {
		var i int64
		if i, err = next.Add(1); err != nil || i >= int64(len(f.groups)) {
			break
		}
		if err = f.read(int(i), s); err != nil {
			err = errors.Join(err, next.Store(int64(len(f.groups))))
			break
		}
	}
	err = agree(c, err)
	if freed := next.Free(); err == nil {
		err = freed
	}
	return s, err
}

// verify compares a summary of the whole file with one that it makes by a serial pass.
func verify(f *table, s *summary) error {
	alone := newSummary(f.columns)
	for i := range f.groups {
		if err := f.read(i, alone); err != nil {
			return err
		}
	}
	for i, col := range f.columns {
		if err := s.same(alone, i); err != nil {
			return fmt.Errorf("column %s: %w", col.name, err)
		}
	}
	return nil
}
