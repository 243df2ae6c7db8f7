package stats

import (
	"bufio"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"math"
	"strconv"

	"golang.org/x/image/font"
	"golang.org/x/image/font/basicfont"
	"golang.org/x/image/math/fixed"
)

// The picture of the communication matrix: row = sender, column = receiver, colour = bytes on a
// logarithmic scale.
//
//	   title
//	   0 1 2 3 …   to rank
//	0 ┌───────┐
//	1 │ cells │  ▒ scale
//	… └───────┘
//	from rank
const (
	gridSize   = 560 // about this many pixels for the cells
	cellMax    = 40  // largest side of a cell, in pixels
	margin     = 64
	scaleWidth = 18
	charWidth  = 7
	lineHeight = 13
)

// matrix is the matrix with at most as many cells per row as pixels: with more ranks, each cell stands for a
// block of them.
type matrix struct {
	title string
	block int         // ranks per cell
	cells [][]float64 // bytes; cells[from][to]
	max   float64
	side  int // pixels of a cell
	step  int // a label at each step-th cell
}

func (s *Summary) matrix() *matrix {
	m := &matrix{block: 1, title: fmt.Sprintf("bytes sent from rank to rank, job %s", s.Job)}
	for (s.Ranks+m.block-1)/m.block > gridSize {
		m.block++
	}
	n := (s.Ranks + m.block - 1) / m.block
	m.cells = make([][]float64, n)
	for i := range m.cells {
		m.cells[i] = make([]float64, n)
	}
	for _, c := range s.Matrix {
		v := &m.cells[c.From/m.block][c.To/m.block]
		*v += float64(c.Bytes)
		m.max = max(m.max, *v)
	}
	m.side = max(1, min(cellMax, gridSize/max(n, 1)))
	for m.step = 1; m.step*m.side < 2*lineHeight; m.step++ {
	}
	return m
}

// size returns the width and height of the picture.
func (m *matrix) size() (w, h int) {
	grid := len(m.cells) * m.side
	return max(margin+grid+3*scaleWidth+10*charWidth, margin+len(m.title)*charWidth), max(2*margin+grid, 2*margin+120)
}

// colorOf returns the colour of a cell: white for no bytes, and from light to dark for 1 to max bytes.
func (m *matrix) colorOf(v float64) color.RGBA {
	if v <= 0 {
		return color.RGBA{255, 255, 255, 255}
	}
	x := 1.0
	if m.max > 1 {
		x = math.Log1p(v) / math.Log1p(m.max)
	}
	mix := func(from, to float64) uint8 { return uint8(from + (to-from)*x) }
	return color.RGBA{mix(222, 8), mix(235, 48), mix(247, 107), 255}
}

// scale calls f for the labels of the colour scale: a number of bytes, and its place between 0, the
// bottom, and 1.
func (m *matrix) scale(f func(text string, at float64)) {
	if m.max <= 0 {
		return
	}
	for v := 1.0; v < m.max; v *= 1024 {
		f(byteSize(uint64(v)), math.Log1p(v)/math.Log1p(m.max))
	}
	f(byteSize(uint64(m.max)), 1)
}

// WriteSVG writes the picture of the communication matrix in the format SVG.
func (s *Summary) WriteSVG(out io.Writer) error {
	m := s.matrix()
	w, h := m.size()
	b := bufio.NewWriter(out)
	p := func(format string, args ...any) { fmt.Fprintf(b, format, args...) } // Flush returns the error
	p(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">`+"\n", w, h)
	p(`<rect width="%d" height="%d" fill="white"/>`+"\n", w, h)
	p(`<text x="%d" y="20" font-size="13">%s</text>`+"\n", margin, m.title)
	for i, row := range m.cells {
		for k, v := range row {
			if v > 0 {
				c := m.colorOf(v)
				p(`<rect x="%d" y="%d" width="%d" height="%d" fill="#%02x%02x%02x"><title>%s to %s: %s</title></rect>`+"\n",
					margin+k*m.side, margin+i*m.side, m.side, m.side, c.R, c.G, c.B, m.label(i), m.label(k), byteSize(uint64(v)))
			}
		}
		if i%m.step == 0 {
			p(`<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", margin-6, margin+i*m.side+(m.side+8)/2, m.label(i))
			p(`<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", margin+i*m.side+m.side/2, margin-6, m.label(i))
		}
	}
	grid := len(m.cells) * m.side
	p(`<rect x="%d" y="%d" width="%d" height="%d" fill="none" stroke="#888"/>`+"\n", margin, margin, grid, grid)
	p(`<text x="%d" y="38">to rank</text><text x="%d" y="%d">from rank</text>`+"\n", margin, 4, margin+grid+16)
	left, top, bottom := margin+grid+scaleWidth, margin, margin+max(grid, 100)
	m.scale(func(text string, at float64) {
		c := m.colorOf(math.Expm1(at * math.Log1p(m.max)))
		y := bottom - int(at*float64(bottom-top))
		p(`<rect x="%d" y="%d" width="%d" height="8" fill="#%02x%02x%02x"/><text x="%d" y="%d">%s</text>`+"\n",
			left, y-4, scaleWidth, c.R, c.G, c.B, left+scaleWidth+6, y+4, text)
	})
	p("</svg>\n")
	return b.Flush()
}

// label returns the rank, or the ranks, of row or column i.
func (m *matrix) label(i int) string { return strconv.Itoa(i * m.block) }

// WritePNG writes the same picture in the format PNG.
func (s *Summary) WritePNG(out io.Writer) error {
	m := s.matrix()
	w, h := m.size()
	img := image.NewRGBA(image.Rect(0, 0, w, h))
	fill := func(x, y, w, h int, c color.RGBA) {
		draw.Draw(img, image.Rect(x, y, x+w, y+h), image.NewUniform(c), image.Point{}, draw.Src)
	}
	text := func(x, y int, s string) {
		d := font.Drawer{Dst: img, Src: image.Black, Face: basicfont.Face7x13, Dot: fixed.P(x, y)}
		d.DrawString(s)
	}
	gray := color.RGBA{136, 136, 136, 255}
	grid := len(m.cells) * m.side
	fill(0, 0, w, h, color.RGBA{255, 255, 255, 255})
	fill(margin-1, margin-1, grid+2, grid+2, gray)
	text(margin, 20, m.title)
	for i, row := range m.cells {
		for k, v := range row {
			fill(margin+k*m.side, margin+i*m.side, m.side, m.side, m.colorOf(v))
		}
		if i%m.step == 0 {
			l := m.label(i)
			text(margin-6-len(l)*charWidth, margin+i*m.side+(m.side+8)/2, l)
			text(margin+i*m.side+(m.side-len(l)*charWidth)/2, margin-6, l)
		}
	}
	text(margin, 38, "to rank")
	text(4, margin+grid+16, "from rank")
	left, top, bottom := margin+grid+scaleWidth, margin, margin+max(grid, 100)
	m.scale(func(s string, at float64) {
		y := bottom - int(at*float64(bottom-top))
		fill(left, y-4, scaleWidth, 8, m.colorOf(math.Expm1(at*math.Log1p(m.max))))
		text(left+scaleWidth+6, y+4, s)
	})
	return png.Encode(out, img)
}
