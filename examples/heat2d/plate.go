package main

import "github.com/weft-hpc/weft/comm"

// plate is a rectangular block of the plate's cells, with a halo: a border, one cell wide, for copies of
// the neighbors' cells. The block may be the whole plate, so the computation on one rank uses the same
// code.
type plate struct {
	w, h      int       // size without the halo
	now, next []float64 // (w+2)·(h+2) cells, line by line

	in, out [4][]float64 // messages received and sent, by side of the block: left, right, lower, upper
}

// newPlate returns the block of the cells with x from x0 to x1-1 and y from y0 to y1-1. The cells have the
// initial temperatures.
func newPlate(x0, x1, y0, y1 int) *plate {
	p := &plate{w: x1 - x0, h: y1 - y0}
	p.now = make([]float64, (p.w+2)*(p.h+2))
	p.next = make([]float64, len(p.now))
	for side := range p.in {
		n := p.h
		if side >= 2 {
			n = p.w
		}
		p.in[side], p.out[side] = make([]float64, n), make([]float64, n)
	}
	for y := range p.h {
		for x := range p.w {
			p.now[p.index(x, y)] = float64((31*(x0+x) + 17*(y0+y)) % 97)
		}
	}
	return p
}

func (p *plate) index(x, y int) int      { return (y+1)*(p.w+2) + x + 1 }
func (p *plate) at(x, y int) float64     { return p.now[p.index(x, y)] }
func (p *plate) line(y, w int) []float64 { return p.now[p.index(0, y):][:w] }

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
}

// pack copies the outermost cells of each side into the messages out.
func (p *plate) pack() {
	for y := range p.h {
		p.out[0][y], p.out[1][y] = p.at(0, y), p.at(p.w-1, y)
	}
	copy(p.out[2], p.line(0, p.w))
	copy(p.out[3], p.line(p.h-1, p.w))
}

// unpack copies the received messages in into the halo. peers are the neighbors by side. At the border of
// the plate there is no neighbor, and the halo stays 0.
func (p *plate) unpack(peers [4]int) {
	for side, peer := range peers {
		if peer == comm.ProcNull {
			continue
		}
		switch side {
		case 0, 1:
			for y, u := range p.in[side] {
				p.now[p.index(side*(p.w+1)-1, y)] = u
			}
		case 2:
			copy(p.line(-1, p.w), p.in[side])
		case 3:
			copy(p.line(p.h, p.w), p.in[side])
		}
	}
}

// cells returns the cells of the block without the halo, line by line.
func (p *plate) cells() []float64 {
	all := make([]float64, 0, p.w*p.h)
	for y := range p.h {
		all = append(all, p.line(y, p.w)...)
	}
	return all
}
