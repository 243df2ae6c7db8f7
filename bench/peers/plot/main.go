// Plot draws the results of bench/peers as SVG. It is a module of its own, so that programs that use
// weft do not depend on the plotting library.
//
//	go run . -o peers.svg picture.json
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"image/color"
	"io"
	"math"
	"os"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// The input, which bench/peers writes in JSON. The types are those of bench/peers/picture.go.
type (
	picture struct {
		Title  string  `json:"title"`
		Panels []panel `json:"panels"`
	}
	panel struct {
		Title  string   `json:"title"`
		Y      string   `json:"y"`
		Log    bool     `json:"log"`    // the axis of y is logarithmic
		Labels []string `json:"labels"` // the labels of x = 0, 1 …; empty: x is a number of bytes
		Series []series `json:"series"`
	}
	series struct {
		Name   string       `json:"name"`
		Target bool         `json:"target"`
		Points [][2]float64 `json:"points"`
	}
)

func main() {
	out := flag.String("o", "peers.svg", "the `file` to write")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: plot -o peers.svg picture.json")
		os.Exit(2)
	}
	if err := run(*out, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

func run(out, in string) (err error) {
	text, err := os.ReadFile(in)
	if err != nil {
		return err
	}
	var p picture
	if err := json.Unmarshal(text, &p); err != nil {
		return fmt.Errorf("parse %s: %w", in, err)
	}
	file, err := os.Create(out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return p.write(file)
}

const (
	columns     = 3
	panelWidth  = 9 * vg.Centimeter
	panelHeight = 6.5 * vg.Centimeter
	head        = 1 * vg.Centimeter // height of the title
)

// write draws the panels in rows of three (columns), and writes the picture to w as SVG.
func (p *picture) write(w io.Writer) error {
	if len(p.Panels) == 0 {
		return errors.New("there is nothing to draw")
	}
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	rows := (len(p.Panels) + columns - 1) / columns
	canvas := vgsvg.New(columns*panelWidth, vg.Length(rows)*panelHeight+head)
	all := draw.New(canvas)
	style := plot.New().Title.TextStyle
	style.Font.Size = 14
	all.SetColor(color.White)
	all.Fill(all.Path())
	all.FillText(style, vg.Point{X: all.Center().X, Y: all.Max.Y - head/4}, p.Title)
	area := draw.Crop(all, 0, 0, 0, -head)
	tiles := draw.Tiles{Rows: rows, Cols: columns, PadX: 2 * vg.Millimeter, PadY: 2 * vg.Millimeter, PadRight: 4 * vg.Millimeter}
	grid := make([][]*plot.Plot, rows)
	for r := range grid {
		grid[r] = make([]*plot.Plot, columns)
	}
	for i := range p.Panels {
		one, err := p.Panels[i].plot()
		if err != nil {
			return fmt.Errorf("%s: %w", p.Panels[i].Title, err)
		}
		grid[i/columns][i%columns] = one
	}
	for r, row := range plot.Align(grid, tiles, area) {
		for c := range row {
			if grid[r][c] != nil {
				grid[r][c].Draw(row[c])
			}
		}
	}
	var text bytes.Buffer
	if _, err := canvas.WriteTo(&text); err != nil {
		return err
	}
	// If a viewer lacks the font, these names let it use a font whose characters have the same
	// widths.
	_, err := w.Write(bytes.ReplaceAll(text.Bytes(), []byte("font-family:Liberation Sans"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif")))
	return err
}

// colours are the colours of the series. People with colour blindness can distinguish them too (the
// palette of Okabe and Ito).
var colours = []color.Color{
	color.RGBA{R: 0, G: 114, B: 178, A: 255},
	color.RGBA{R: 213, G: 94, B: 0, A: 255},
	color.RGBA{R: 0, G: 158, B: 115, A: 255},
	color.RGBA{R: 204, G: 121, B: 167, A: 255},
}

var grey = color.Gray{Y: 110}

func (p *panel) plot() (*plot.Plot, error) {
	one := plot.New()
	one.Title.Text, one.Y.Label.Text = p.Title, p.Y
	one.Legend.Top = true
	one.Legend.TextStyle.Font.Size = 8
	one.Add(plotter.NewGrid())
	n := 0
	for _, s := range p.Series {
		style := draw.LineStyle{Color: grey, Width: vg.Points(1), Dashes: []vg.Length{vg.Points(3), vg.Points(2)}}
		if !s.Target {
			style = draw.LineStyle{Color: colours[n%len(colours)], Width: vg.Points(1.5)}
			n++
		}
		if err := p.add(one, s, style); err != nil {
			return nil, err
		}
	}
	p.axes(one)
	return one, nil
}

// add adds a series to a plot. If x is a number of bytes, add draws a line. If x has labels, it draws a
// point for each figure, or a dash for each target.
func (p *panel) add(one *plot.Plot, s series, style draw.LineStyle) error {
	points := make(plotter.XYs, len(s.Points))
	for i, at := range s.Points {
		if p.Labels == nil {
			at[0] = math.Log2(at[0])
		}
		points[i] = plotter.XY{X: at[0], Y: at[1]}
	}
	if p.Labels != nil && s.Target {
		for i, at := range points {
			dash, err := plotter.NewLine(plotter.XYs{{X: at.X - 0.35, Y: at.Y}, {X: at.X + 0.35, Y: at.Y}})
			if err != nil {
				return err
			}
			dash.LineStyle = style
			one.Add(dash)
			if i == 0 {
				one.Legend.Add(s.Name, dash)
			}
		}
		return nil
	}
	line, marks, err := plotter.NewLinePoints(points)
	if err != nil {
		return err
	}
	line.LineStyle = style
	marks.GlyphStyle = draw.GlyphStyle{Color: style.Color, Radius: vg.Points(2.5), Shape: draw.CircleGlyph{}}
	switch {
	case s.Target:
		one.Add(line)
		one.Legend.Add(s.Name, line)
	case p.Labels != nil:
		one.Add(marks)
		one.Legend.Add(s.Name, marks)
	default:
		one.Add(line, marks)
		one.Legend.Add(s.Name, line, marks)
	}
	return nil
}

// axes sets the labels and ranges of the axes. It leaves room for the legend above the points.
func (p *panel) axes(one *plot.Plot) {
	one.X.Tick.Label.Font.Size, one.Y.Tick.Label.Font.Size = 8, 8
	one.X.Label.TextStyle.Font.Size, one.Y.Label.TextStyle.Font.Size = 9, 9
	if p.Labels != nil {
		one.NominalX(p.Labels...)
		one.X.Tick.Label.Rotation = math.Pi / 6
		one.X.Tick.Label.XAlign, one.X.Tick.Label.YAlign = draw.XRight, draw.YTop
		one.X.Min, one.X.Max = -0.5, float64(len(p.Labels))-0.5
	} else {
		one.X.Label.Text = "bytes"
		one.X.Tick.Marker = plot.ConstantTicks(p.sizes())
		one.X.Min, one.X.Max = one.X.Min-0.5, one.X.Max+0.5
	}
	if !p.Log {
		one.Y.Min, one.Y.Max = 0, 140
		one.Y.Tick.Marker = plot.ConstantTicks{{Value: 0, Label: "0"}, {Value: 50, Label: "50"}, {Value: 100, Label: "100"}}
		return
	}
	// The ticks are powers of two. The range includes 1, where weft is as fast as the peer.
	lo := math.Floor(math.Log2(min(one.Y.Min, 0.9)))
	hi := math.Ceil(math.Log2(max(one.Y.Max, 1.1))) + 1
	var ticks []plot.Tick
	for e := lo; e <= hi; e++ {
		label := fmt.Sprintf("%g", math.Exp2(e))
		if e < 0 {
			label = fmt.Sprintf("1/%g", math.Exp2(-e))
		}
		ticks = append(ticks, plot.Tick{Value: math.Exp2(e), Label: label})
	}
	one.Y.Min, one.Y.Max = math.Exp2(lo), math.Exp2(hi)
	one.Y.Scale, one.Y.Tick.Marker = plot.LogScale{}, plot.ConstantTicks(ticks)
	level := plotter.NewFunction(func(float64) float64 { return 1 })
	level.LineStyle = draw.LineStyle{Color: color.Black, Width: vg.Points(0.75)}
	one.Add(level)
}

// sizes returns the ticks of the axis of x, if x is a number of bytes: one tick for each size that a
// point has.
func (p *panel) sizes() []plot.Tick {
	var ticks []plot.Tick
	for _, s := range p.Series {
		for _, at := range s.Points {
			t := plot.Tick{Value: math.Log2(at[0]), Label: bytesText(int(at[0]))}
			if !slices.Contains(ticks, t) {
				ticks = append(ticks, t)
			}
		}
	}
	return ticks
}

// bytesText returns a number of bytes in the shortest form, for example "4K".
func bytesText(n int) string {
	unit := 0
	for n >= 1<<10 && n%(1<<10) == 0 && unit < 3 {
		n >>= 10
		unit++
	}
	return fmt.Sprint(n) + []string{"", "K", "M", "G"}[unit]
}
