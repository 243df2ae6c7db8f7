package shm

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// segment is the memory file of the host's ranks, as this process maps it. Its
// ranks are local ones: 0 to layout.n-1 in the order of world ranks.
type segment struct {
	layout
	file  *os.File
	front []byte // header, cards, claims, tables
	inbox []byte // this rank's rings
}

// mapFile maps n bytes of the file from an offset that is a multiple of
// pageSize. The caller unmaps them by unmapFile.
func (s *segment) mapFile(off int64, n int) ([]byte, error) {
	skip := int(off % int64(os.Getpagesize()))
	mem, err := unix.Mmap(int(s.file.Fd()), off-int64(skip), n+skip, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	return mem[skip:], nil
}

func (s *segment) header() *fileHeader { return at[fileHeader](s.front, 0) }

func (s *segment) card(rank int) *card { return at[card](s.front, s.cards+int64(rank)*pageSize) }

// claims are a rank's lines for copies that both sides make.
func (s *segment) claims(rank int) []claim {
	off := s.layout.claims + int64(rank)*pageSize
	return view[claim](s.front[off : off+pageSize])
}

// directory is where a rank describes its part of the shared heap.
func (s *segment) directory(rank int) []byte {
	off := s.tables + int64(rank)*tableSize
	return s.front[off : off+dirSize : off+dirSize]
}

// regions is where a rank describes its private memory regions.
func (s *segment) regions(rank int) []byte {
	off := s.tables + int64(rank)*tableSize
	return s.front[off+dirSize : off+tableSize : off+tableSize]
}
