package main

import "github.com/weft-hpc/weft/comm"

// plate is a rectangular block of the plate's cells, with a halo: a border, one cell wide, for copies of
// the neighbors' cells. The block may be the whole plate, so the computation on one rank uses the same
// code.
type plate struct {
	w, h      int       // size without the halo
	now, next []float64 // (w+2)·(h+2) cells, line by line

	// The outermost cells of now and its halo, by neighbor: lower y, higher y, lower x, higher x. The same of next.
	border, halo         []comm.View[float64]
	nextBorder, nextHalo []comm.View[float64]
}

// newPlate returns the block of the cells with x from x0 to x1-1 and y from y0 to y1-1. The cells have the
// initial temperatures.
func newPlate(x0, x1, y0, y1 int) *plate {
	p := &plate{w: x1 - x0, h: y1 - y0}
	p.now = make([]float64, (p.w+2)*(p.h+2))
	p.next = make([]float64, len(p.now))
	p.border, p.halo = p.sides(p.now)
	p.nextBorder, p.nextHalo = p.sides(p.next)
	for y := range p.h {
		for x := range p.w {
			p.now[p.index(x, y)] = float64((31*(x0+x) + 17*(y0+y)) % 97)
		}
	}
	return p
}

func (p *plate) index(x, y int) int  { return (y+1)*(p.w+2) + x + 1 }
func (p *plate) at(x, y int) float64 { return p.now[p.index(x, y)] }

// part returns the w × h cells from x, y on.
func (p *plate) part(cells []float64, x, y, w, h int) comm.View[float64] {
	return comm.Of(cells, comm.Subarray([]int{p.h + 2, p.w + 2}, []int{h, w}, []int{y + 1, x + 1}))
}

// sides returns the outermost cells and the halo.
func (p *plate) sides(cells []float64) (border, halo []comm.View[float64]) {
	w, h := p.w, p.h
	border = []comm.View[float64]{
		p.part(cells, 0, 0, w, 1), p.part(cells, 0, h-1, w, 1), p.part(cells, 0, 0, 1, h), p.part(cells, w-1, 0, 1, h),
	}
	halo = []comm.View[float64]{
		p.part(cells, 0, -1, w, 1), p.part(cells, 0, h, w, 1), p.part(cells, -1, 0, 1, h), p.part(cells, w, 0, 1, h),
	}
	return border, halo
}

// cells returns the cells of the block without the halo.
func (p *plate) cells() comm.View[float64] { return p.part(p.now, 0, 0, p.w, p.h) }

// step does one step of the Jacobi method: it computes all new values from the values of the step before.
func (p *plate) step() {
	const k = 0.2
	stride := p.w + 2
	for y := range p.h {
		for i := p.index(0, y); i < p.index(p.w, y); i++ {
			u := p.now[i]
			p.next[i] = u + k*(p.now[i-1]+p.now[i+1]+p.now[i-stride]+p.now[i+stride]-4*u)
		}
	}
	p.now, p.next = p.next, p.now
	p.border, p.nextBorder = p.nextBorder, p.border
	p.halo, p.nextHalo = p.nextHalo, p.halo
}
