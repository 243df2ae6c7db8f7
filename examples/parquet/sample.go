package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/parquet-go/parquet-go"
)

// row is a row of the file that -make writes.
type row struct {
	ID          int64    `parquet:"id"`
	Time        int64    `parquet:"time,timestamp(microsecond)"`
	Day         int32    `parquet:"day,date"`
	City        *string  `parquet:"city,optional,dict"`
	Temperature *float64 `parquet:"temperature,optional"`
	Visitors    uint32   `parquet:"visitors"`
	Price       int64    `parquet:"price,decimal(2:12)"`
	Open        bool     `parquet:"open"`
	Tags        []string `parquet:"tags,list"`
}

// writeSample writes a file with n rows. The last row group may have fewer rows than the others.
func writeSample(name string, n, group int) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	w := parquet.NewGenericWriter[row](f,
		parquet.Compression(&parquet.Snappy), parquet.MaxRowsPerRowGroup(int64(group)))
	for i := 0; i < n && err == nil; i++ {
		_, err = w.Write([]row{sample(i)})
	}
	return errors.Join(err, w.Close(), f.Close())
}

// sample returns row i. It depends on nothing but i.
func sample(i int) row {
	h := uint64(i+1) * 0x9e3779b97f4a7c15 // the multiplication spreads consecutive numbers
	h ^= h >> 29
	cities := [...]string{"", "Aarhus", "Bologna", "Cádiz", "Delft", "Évora", "Łódź"}
	r := row{
		ID:   int64(i) - 1000,
		Time: 1_700_000_000_000_000 + int64(i)*60_000_000, Day: 19_675 + int32(i/1440),
		Visitors: uint32(h >> 32), Price: int64(h%2_000_000) - 500_000, Open: h%3 == 0,
	}
	if at := h % uint64(len(cities)+1); at < uint64(len(cities)) {
		r.City = &cities[at]
	}
	if i%10 != 7 {
		t := 15 + float64(h%1000)/50
		r.Temperature = &t
	}
	for range i % 3 {
		r.Tags = append(r.Tags, fmt.Sprint("tag ", (i+len(r.Tags))%50))
	}
	return r
}
