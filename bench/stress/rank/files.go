package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/pio"
)

// fileState is a file, and the elements that it must have. All ranks compute all elements.
type fileState struct {
	*call
	f     *pio.File
	name  string
	v     *pio.View[int64]
	model []int64
	offs  [][]int64 // by rank: the places of its elements in a layout, whose extent is ext
	ext   int64
	round uint64
}

// files makes a file, and writes and reads elements of views in which the elements of the ranks
// interleave. Some elements belong to no rank, and must not change. Then it writes and reads at the
// shared file pointer, and changes the size of the file.
func files(k *call) (err error) {
	choose := func(values ...string) string { return values[k.rng.IntN(len(values))] }
	modes := []string{"automatic", "enable", "disable"}
	// The file lies beside the program, because bench/stress deletes that folder.
	s := &fileState{call: k, name: filepath.Join(filepath.Dir(os.Args[0]), fmt.Sprintf("stress-%x", mix(k.salt, uint64(os.Getppid()), 7)))}
	s.f, err = pio.Open(k.c, s.name, os.O_RDWR|os.O_CREATE|os.O_TRUNC|pio.DeleteOnClose, 0o600,
		pio.Hint{Key: "cb_buffer_size", Value: choose("100", "5000", "100000", "16777216")},
		pio.Hint{Key: "cb_nodes", Value: strconv.Itoa(k.rng.IntN(4))},
		pio.Hint{Key: "romio_cb_read", Value: choose(modes...)}, pio.Hint{Key: "romio_cb_write", Value: choose(modes...)},
		pio.Hint{Key: "romio_ds_read", Value: choose(modes...)}, pio.Hint{Key: "romio_ds_write", Value: choose(modes...)})
	if err != nil {
		return err
	}
	if err := s.f.SetAtomic(k.rng.IntN(8) == 0); err != nil {
		return err
	}
	for s.round = range uint64(1 + k.rng.IntN(3)) {
		if err := s.view(); err != nil {
			return err
		}
		for range 1 + k.rng.IntN(3) {
			if err := s.write(); err != nil {
				return fmt.Errorf("write, round %d: %w", s.round, err)
			}
			if err := s.read(); err != nil {
				return fmt.Errorf("read, round %d: %w", s.round, err)
			}
		}
	}
	if err := s.shared(); err != nil {
		return fmt.Errorf("shared pointer: %w", err)
	}
	if err := s.size(); err != nil {
		return err
	}
	return s.f.Close()
}

// view makes a view of random elements for each rank.
func (s *fileState) view() (err error) {
	p := s.c.Size()
	s.offs, s.ext = make([][]int64, p), int64(1+s.rng.IntN(40*p))
	for at := int64(0); at < s.ext; {
		r := s.rng.IntN(p + 1)
		for range 1 + s.rng.IntN(12) {
			if at < s.ext && r < p {
				s.offs[r] = append(s.offs[r], at)
			}
			at++
		}
	}
	l := comm.Layout{}
	if own := s.offs[s.c.Rank()]; len(own) > 0 {
		places := make([]int, len(own))
		for i, o := range own {
			places[i] = int(o)
		}
		l = comm.IndexedBlock(1, places).Resized(0, int(s.ext))
	}
	s.delay()
	s.v, err = pio.NewView[int64](s.f, 0, l, pio.SharedPointer())
	return err
}

// place returns the place in the file of element i of a rank's view.
func (s *fileState) place(rank int, i int64) int64 {
	n := int64(len(s.offs[rank]))
	return i/n*s.ext + s.offs[rank][i%n]
}

// draw returns, for each rank, the first element of an access and the number of elements.
func (s *fileState) draw() (first []int64, count []int) {
	most := s.length(8, 8*s.c.Size())
	for r := range s.c.Size() {
		at, n := int64(s.rng.IntN(200)), s.rng.IntN(most+1)
		if len(s.offs[r]) == 0 {
			at, n = 0, 0
		}
		first, count = append(first, at), append(count, n)
	}
	return first, count
}

// write writes elements on all ranks, together or each for itself.
func (s *fileState) write() error {
	me := s.c.Rank()
	first, count := s.draw()
	salt := s.rng.Uint64()
	buf := make([]int64, count[me])
	for r := range s.c.Size() {
		for i := range count[r] {
			at := s.place(r, first[r]+int64(i))
			s.model = append(s.model, make([]int64, max(0, at+1-int64(len(s.model))))...)
			s.model[at] = int64(mix(salt, uint64(r), uint64(i)) >> 1)
			if r == me {
				buf[i] = s.model[at]
			}
		}
	}
	s.delay()
	n, err := s.access(writes, buf, first[me])
	if err == nil && n != len(buf) {
		err = fmt.Errorf("%d of %d elements were written", n, len(buf))
	}
	if err != nil {
		return err
	}
	return s.c.Barrier()
}

// read reads elements on all ranks, together or each for itself, and compares them.
func (s *fileState) read() error {
	me := s.c.Rank()
	first, count := s.draw()
	at, buf := first[me], make([]int64, count[me])
	var want []int64
	for i := range buf {
		p := s.place(me, at+int64(i))
		if p >= int64(len(s.model)) {
			break
		}
		want = append(want, s.model[p])
	}
	s.delay()
	n, err := s.access(reads, buf, at)
	if err == nil {
		err = same("elements of the file", buf[:n], want)
	}
	if err != nil {
		return err
	}
	return s.whole()
}

// whole compares the file with the model, also the elements that belong to no rank.
func (s *fileState) whole() error {
	all, err := pio.NewView[int64](s.f, 0, comm.Contiguous(1))
	if err != nil {
		return err
	}
	whole := make([]int64, len(s.model)+1)
	n, err := pio.ReadAll(all, whole)
	if err == nil {
		err = same("the file", whole[:n], s.model)
	}
	if err != nil {
		return err
	}
	return s.c.Barrier() // no rank writes before all have read
}
