package mpiio_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/pio"
)

// TestSharedPointer lets all ranks write and read blocks at the shared file pointer. No block may be
// lost or be written twice.
func TestSharedPointer(t *testing.T) {
	const blocks, length = 20, 3
	overFabrics(t, []int{1, 2, 3, 5}, func(c *comm.Comm, name string) error {
		n := c.Size()
		return withFile(c, name, func(f *pio.File) error {
			// The view has two of three elements, so writes of different ranks share no element but pages.
			v, err := pio.NewView[int32](f, 12, comm.Contiguous(2).Resized(0, 3), pio.SharedPointer())
			if err != nil {
				return err
			}
			for i := range blocks {
				b := slices.Repeat([]int32{int32(c.Rank()*blocks + i + 1)}, length)
				var k int
				if i%2 == 0 {
					k, err = pio.WriteShared(v, b)
				} else {
					var st comm.Status
					st, err = pio.IwriteShared(v, b).Wait()
					k = st.Count
				}
				if k != length || err != nil {
					return fmt.Errorf("%d elements: %w", k, err)
				}
			}
			if err := c.Barrier(); err != nil {
				return err
			}
			if at, err := v.PositionShared(); at != int64(n*blocks*length) || err != nil {
				return fmt.Errorf("the pointer is %d: %w", at, err)
			}
			if err := v.SeekShared(0, io.SeekStart); err != nil {
				return err
			}
			var got []int32
			for i := range blocks {
				b := make([]int32, length)
				var k int
				if i%2 == 0 {
					k, err = pio.ReadShared(v, b)
				} else {
					var st comm.Status
					st, err = pio.IreadShared(v, b).Wait()
					k = st.Count
				}
				if err != nil || k != length || b[0] != b[1] || b[1] != b[2] {
					return fmt.Errorf("read %v, %d elements: %w", b, k, err)
				}
				got = append(got, b[0])
			}
			all := make([]int32, n*blocks)
			if err := comm.Allgather(c, got, all); err != nil {
				return err
			}
			slices.Sort(all)
			for i, x := range all {
				if x != int32(i+1) {
					return fmt.Errorf("blocks %v", all)
				}
			}
			if k, err := pio.ReadShared(v, make([]int32, 1)); k != 0 || err != nil {
				return fmt.Errorf("after the end: %d, %w", k, err)
			}
			if err := c.Barrier(); err != nil {
				return err
			}
			return ordered(c, v, n*blocks*length)
		})
	})
}

// ordered tests the ordered calls on a view whose file has total elements.
func ordered(c *comm.Comm, v *pio.View[int32], total int) error {
	me := c.Rank()
	if err := v.SeekShared(-int64(total), io.SeekEnd); err != nil {
		return err
	}
	if err := v.SeekShared(5, io.SeekCurrent); err != nil {
		return err
	}
	b := make([]int32, me) // rank r writes r elements, twice
	for i := range b {
		b[i] = int32(-1 - me)
	}
	k, err := pio.WriteOrdered(v, b)
	if err == nil {
		err = pio.WriteOrderedBegin(v, b)
	}
	k2, err2 := pio.WriteOrderedEnd(v)
	if err := errors.Join(err, err2); err != nil || k != me || k2 != me {
		return fmt.Errorf("%d and %d elements: %w", k, k2, err)
	}
	if err := v.SeekShared(5, io.SeekStart); err != nil {
		return err
	}
	got, again := make([]int32, me), make([]int32, me)
	k, err = pio.ReadOrdered(v, got)
	if err == nil {
		err = pio.ReadOrderedBegin(v, again)
	}
	k2, err2 = pio.ReadOrderedEnd(v)
	if err := errors.Join(err, err2); err != nil || k != me || k2 != me || !slices.Equal(got, b) || !slices.Equal(again, b) {
		return fmt.Errorf("%d and %d elements, %v and %v: %w", k, k2, got, again, err)
	}
	sum := c.Size() * (c.Size() - 1)
	if at, err := v.PositionShared(); at != int64(5+sum) || err != nil {
		return fmt.Errorf("the pointer is %d: %w", at, err)
	}
	if err := c.Barrier(); err != nil {
		return err
	}
	return v.SeekShared(int64(total+sum), io.SeekStart)
}

// TestAppend checks that file pointers begin at the end of a file that was opened with O_APPEND.
func TestAppend(t *testing.T) {
	overFabrics(t, []int{3}, func(c *comm.Comm, name string) error {
		if c.Rank() == 0 {
			if err := os.WriteFile(name, []byte("0123456789"), 0o600); err != nil {
				return err
			}
		}
		if err := c.Barrier(); err != nil {
			return err
		}
		f, err := pio.Open(c, name, os.O_RDWR|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		v, err := pio.NewView[[2]byte](f, 1, comm.Contiguous(1), pio.SharedPointer())
		if err != nil {
			return err
		}
		if v.Position() != 5 { // element 4 has one byte before the end
			return fmt.Errorf("the pointer is %d", v.Position())
		}
		if _, err := pio.WriteOrdered(v, [][2]byte{{'a', byte('0' + c.Rank())}}); err != nil {
			return err
		}
		if err := v.SeekShared(1<<62, io.SeekStart); err != nil { // too far for a file, but not for a pointer
			return err
		}
		if _, err := pio.ReadOrdered(v, make([][2]byte, 1)); !errors.Is(err, comm.ErrArg) {
			return fmt.Errorf("far away: %w", err)
		}
		if at, err := v.Seek(-3, io.SeekEnd); at != 5 || err != nil {
			return fmt.Errorf("seek to %d: %w", at, err)
		}
		_, err = v.Seek(-6, io.SeekCurrent)
		_, err2 := v.Seek(0, 7)
		if err := errors.Join(is(err, comm.ErrArg), is(err2, comm.ErrArg)); err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
		text, err := os.ReadFile(name)
		if string(text) != "0123456789\x00a0a1a2" || err != nil {
			return fmt.Errorf("the file is %q: %w", text, err)
		}
		return nil
	})
}

// TestAtomic lets ranks write one range at the same time. Each read must find the data of one write.
func TestAtomic(t *testing.T) {
	overFabrics(t, []int{2, 3}, func(c *comm.Comm, name string) error {
		return withFile(c, name, func(f *pio.File) error {
			if err := f.SetAtomic(true); err != nil {
				return err
			}
			v, err := pio.NewView[int32](f, 0, comm.Contiguous(2).Resized(0, 3))
			if err != nil {
				return err
			}
			const length = 5000
			b, got := make([]int32, length), make([]int32, length)
			if _, err := pio.WriteAtAll(v, b, 0); err != nil {
				return err
			}
			for i := range 20 {
				for j := range b {
					b[j] = int32(100*c.Rank() + i)
				}
				if _, err := pio.WriteAt(v, b, 0); err != nil {
					return err
				}
				if k, err := pio.ReadAt(v, got, 0); k != length || err != nil {
					return fmt.Errorf("%d elements: %w", k, err)
				}
				if i := slices.IndexFunc(got, func(x int32) bool { return x != got[0] }); i >= 0 {
					return fmt.Errorf("element 0 is %d, element %d is %d", got[0], i, got[i])
				}
			}
			// A collective write of the same places leaves the data of the highest rank.
			if _, err := pio.WriteAtAll(v, b, 0); err != nil {
				return err
			}
			_, err = pio.ReadAtAll(v, got, 0)
			if i := slices.IndexFunc(got, func(x int32) bool { return x != int32(100*(c.Size()-1)+19) }); i >= 0 {
				return fmt.Errorf("element %d is %d", i, got[i])
			}
			return err
		})
	})
}

// TestAtomicEnd appends blocks to a file while the ranks read it by collective calls. Each block has
// gaps, so that its write makes the file longer in many steps. Each rank must find whole blocks only.
func TestAtomicEnd(t *testing.T) {
	const block, blocks = 1 << 14, 40
	gaps := comm.Contiguous(64).Resized(0, 100)
	for _, way := range []string{"enable", "disable"} {
		t.Run(way, func(t *testing.T) {
			overFabrics(t, []int{2, 3}, func(c *comm.Comm, name string) error {
				own, err := c.Self()
				if err != nil {
					return err
				}
				written := make(chan error, 1)
				return withFile(c, name, func(f *pio.File) error {
					if err := errors.Join(f.SetAtomic(true), f.SetHints(pio.Hint{Key: "romio_cb_read", Value: way})); err != nil {
						return err
					}
					if c.Rank() == 0 {
						go func() {
							written <- withFile(own, name, func(f *pio.File) error {
								err := f.SetAtomic(true)
								if err != nil {
									return err
								}
								v, err := pio.NewView[byte](f, 0, gaps)
								for i := 0; i < blocks && err == nil; i++ {
									_, err = pio.WriteAt(v, bytes.Repeat([]byte{byte(i + 1)}, block), int64(i*block))
								}
								return err
							}, pio.Hint{Key: "romio_ds_write", Value: "disable"})
						}()
					} else {
						written <- nil
					}
					v, err := pio.NewView[byte](f, 0, gaps)
					if err != nil {
						return err
					}
					b := make([]byte, blocks*block)
					for sum := 0; sum < blocks*c.Size(); {
						n, err := pio.ReadAtAll(v, b, 0)
						if err != nil || n%block != 0 {
							return errors.Join(err, fmt.Errorf("%d bytes", n))
						}
						for i, x := range b[:n] {
							if x != byte(i/block+1) {
								return fmt.Errorf("byte %d of %d is %d", i, n, x)
							}
						}
						total := make([]int, 1)
						if err := comm.Allreduce(c, []int{n / block}, total, comm.Sum); err != nil {
							return err
						}
						sum = total[0]
						if len(written) > 0 && c.Rank() == 0 { // the writer has ended
							if err := <-written; err != nil {
								return err
							}
							written <- nil
						}
					}
					return <-written
				})
			})
		})
	}
}

// TestGaps lets the ranks write interleaved elements at the same time, by independent and by
// nonblocking collective calls, all of which read and write the gaps, too. No element may be lost.
func TestGaps(t *testing.T) {
	for _, atomic := range []bool{false, true} {
		for _, way := range []string{"enable", "disable"} {
			t.Run(fmt.Sprintf("atomic %v, %s", atomic, way), func(t *testing.T) { testGaps(t, atomic, way) })
		}
	}
}

func testGaps(t *testing.T, atomic bool, way string) {
	overFabrics(t, []int{2, 3}, func(c *comm.Comm, name string) error {
		n, me := c.Size(), c.Rank()
		return withFile(c, name, func(f *pio.File) error {
			if err := f.SetAtomic(atomic); err != nil {
				return err
			}
			alone, err := pio.NewView[int32](f, int64(4*me), comm.Contiguous(1).Resized(0, 2*n))
			if err != nil {
				return err
			}
			all, err := pio.NewView[int32](f, int64(4*(n+me)), comm.Contiguous(1).Resized(0, 2*n))
			if err != nil {
				return err
			}
			const length = 3000
			for round := range 10 {
				b := slices.Repeat([]int32{int32(100*round + me)}, length)
				r := pio.IwriteAtAll(all, b, 0)
				for i := 0; i < length; i += 500 {
					if _, err := pio.WriteAt(alone, b[i:i+500], int64(i)); err != nil {
						return err
					}
				}
				if _, err := r.Wait(); err != nil {
					return err
				}
				for _, v := range []*pio.View[int32]{alone, all} {
					got := make([]int32, length)
					if _, err := pio.ReadAt(v, got, 0); err != nil || !slices.Equal(got, b) {
						return fmt.Errorf("round %d: %w", round, errors.Join(err, errors.New("elements were lost")))
					}
				}
			}
			return nil
		}, pio.Hint{Key: "romio_ds_write", Value: "enable"}, pio.Hint{Key: "romio_cb_write", Value: way}, pio.Hint{Key: "cb_buffer_size", Value: "5000"})
	})
}

// TestSharedPointerLimit: calls that would move the shared file pointer beyond the largest int64
// return ErrArg on all ranks, and leave the pointer as it is.
func TestSharedPointerLimit(t *testing.T) {
	overFabrics(t, []int{1, 3}, func(c *comm.Comm, name string) error {
		return withFile(c, name, func(f *pio.File) error {
			v, err := pio.NewView[byte](f, 0, comm.Contiguous(1), pio.SharedPointer())
			if err != nil {
				return err
			}
			const last = math.MaxInt64 - 1
			if err := v.SeekShared(last, io.SeekStart); err != nil {
				return err
			}
			for range 2 {
				_, err := pio.WriteShared(v, make([]byte, 5))
				_, err2 := pio.ReadShared(v, make([]byte, 5))
				_, err3 := pio.WriteOrdered(v, make([]byte, 5))
				_, err4 := pio.ReadOrdered(v, make([]byte, 5))
				err5, err6 := v.SeekShared(2, io.SeekCurrent), v.SeekShared(math.MinInt64, io.SeekCurrent)
				for _, err := range []error{err, err2, err3, err4, err5, err6} {
					if err := is(err, comm.ErrArg); err != nil {
						return err
					}
				}
				if err := c.Barrier(); err != nil { // all ranks have taken their elements back
					return err
				}
				if at, err := v.PositionShared(); at != last || err != nil {
					return fmt.Errorf("the pointer is %d: %w", at, err)
				}
				if err := c.Barrier(); err != nil {
					return err
				}
			}
			if err := v.SeekShared(-last, io.SeekCurrent); err != nil {
				return err
			}
			n, err := pio.WriteOrdered(v, []byte{1})
			if n != 1 || err != nil {
				return fmt.Errorf("%d elements: %w", n, err)
			}
			return nil
		})
	})
}
