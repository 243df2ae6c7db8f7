package mpiio_test

import (
	"encoding/hex"
	"fmt"
	"os"
	"reflect"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/pio"
)

// record has values of each kind, with padding in memory.
type record struct {
	A int8
	B int64
	C bool
	D [2]uint16
	E complex64
	F int
	G float64
}

// TestExternal32 writes and reads elements in external32, collectively and independently, and
// compares the bytes of the file with those that the standard gives.
func TestExternal32(t *testing.T) {
	value := func(i int) record {
		return record{A: int8(-i), B: int64(i) << 40, C: i%2 == 1, D: [2]uint16{uint16(i), 0x102}, E: complex(1, float32(i)), F: -2, G: 1.5}
	}
	const bytes = 1 + 8 + 1 + 4 + 8 + 8 + 8
	overFabrics(t, []int{1, 2, 3}, func(c *comm.Comm, name string) error {
		n, me := c.Size(), c.Rank()
		return withFile(c, name, func(f *pio.File) error {
			v, err := pio.NewView[record](f, int64(bytes*me), comm.Contiguous(1).Resized(0, n), pio.External32())
			if err != nil {
				return err
			}
			if v.ElemSize() != bytes {
				return fmt.Errorf("elements of %d bytes", v.ElemSize())
			}
			own := make([]record, 7)
			for i := range own {
				own[i] = value(me + i*n)
			}
			if k, err := pio.WriteAll(v, own[:3]); k != 3 || err != nil {
				return fmt.Errorf("%d elements: %w", k, err)
			}
			spread := make([]record, 8)
			copy(spread[1:4:4], own[3:4])
			spread[3], spread[5], spread[7] = own[4], own[5], own[6]
			if k, err := pio.Write(v, comm.Of(spread, comm.Vector(4, 1, 2).Shift(1))); k != 4 || err != nil {
				return fmt.Errorf("%d elements: %w", k, err)
			}
			if err := c.Barrier(); err != nil {
				return err
			}
			got := make([]record, 9)
			if k, err := pio.ReadAtAll(v, got, 0); k != 7 || err != nil || !reflect.DeepEqual(got[:7], own) {
				return fmt.Errorf("%d elements %v: %w", k, got, err)
			}
			clear(spread)
			if k, err := pio.ReadAt(v, comm.Of(spread, comm.Vector(4, 1, 2).Shift(1)), 5); k != 2 || err != nil || spread[1] != own[5] || spread[3] != own[6] || spread[5] != (record{}) {
				return fmt.Errorf("%d elements %v: %w", k, spread, err)
			}
			raw, err := os.ReadFile(name)
			if err != nil || len(raw) != 7*n*bytes {
				return fmt.Errorf("the file has %d bytes: %w", len(raw), err)
			}
			if n == 1 {
				const want = "ff" + "0000010000000000" + "01" + "0001" + "0102" + "3f800000" + "3f800000" + "fffffffffffffffe" + "3ff8000000000000"
				if got := hex.EncodeToString(raw[bytes : 2*bytes]); got != want {
					return fmt.Errorf("record 1 is\n%s, not\n%s", got, want)
				}
			}
			return nil
		})
	})
}
