package job

import (
	"bytes"
	"fmt"

	"github.com/pelletier/go-toml/v2/unstable"
)

// position is a place in a job file, counted from 1.
type position struct{ line, column int }

// positions maps the full path of each key, such as "app[1].np", to the position of the key and of
// its value. The value of a table is at the position of its header.
type positions struct {
	keys, values map[string]position
}

// locate finds the positions in a document, which has been decoded and so has no syntax errors.
func locate(doc []byte) positions {
	l := &locator{
		doc:    doc,
		at:     positions{keys: make(map[string]position), values: make(map[string]position)},
		tables: make(map[string]int),
	}
	for i, b := range doc {
		if b == '\n' {
			l.newlines = append(l.newlines, i)
		}
	}
	var p unstable.Parser
	p.Reset(doc)
	table := ""
	for p.NextExpression() {
		switch e := p.Expression(); e.Kind {
		case unstable.Table:
			table = l.header(e, false)
		case unstable.ArrayTable:
			table = l.header(e, true)
		case unstable.KeyValue:
			l.keyValue(e, table)
		default: // comments
		}
	}
	return l.at
}

// key returns the position of a key, or of the nearest table that contains it.
func (p positions) key(path string) position { return nearest(p.keys, path) }

// value returns the position of a key's value, or of the nearest table that contains it.
func (p positions) value(path string) position {
	if at, ok := p.values[path]; ok {
		return at
	}
	return p.key(path)
}

func nearest(m map[string]position, path string) position {
	for path != "" {
		if at, ok := m[path]; ok {
			return at
		}
		i := len(path) - 1
		for i > 0 && path[i] != '.' && path[i] != '[' {
			i--
		}
		path = path[:i]
	}
	return position{1, 1}
}

type locator struct {
	doc      []byte
	newlines []int
	at       positions
	tables   map[string]int // number of elements seen so far of each array of tables
}

// header enters [a.b] or [[a.b]] and returns the path of what follows it.
func (l *locator) header(e *unstable.Node, array bool) string {
	path, it := "", e.Key()
	for it.Next() {
		k := it.Node()
		path = child(path, string(k.Data))
		at := l.position(int(k.Raw.Offset))
		last := it.IsLast()
		if _, ok := l.at.keys[path]; !ok || last {
			l.at.keys[path], l.at.values[path] = at, at
		}
		if n, ok := l.tables[path]; ok && !last {
			path = element(path, n-1)
		}
		if last && array {
			l.tables[path]++
			path = element(path, l.tables[path]-1)
			l.at.keys[path], l.at.values[path] = at, at
		}
	}
	return path
}

func (l *locator) keyValue(e *unstable.Node, table string) {
	path, end, it := table, 0, e.Key()
	for it.Next() {
		k := it.Node()
		path = child(path, string(k.Data))
		end = int(k.Raw.Offset + k.Raw.Length)
		if _, ok := l.at.keys[path]; !ok || it.IsLast() {
			l.at.keys[path] = l.position(int(k.Raw.Offset))
		}
	}
	// The value begins after "=" and blanks.
	rest := bytes.TrimLeft(l.doc[end:], " \t")
	rest = bytes.TrimLeft(bytes.TrimPrefix(rest, []byte("=")), " \t")
	l.value(e.Value(), path, len(l.doc)-len(rest))
}

// value records the position of a value at offset, and of the values in it.
func (l *locator) value(v *unstable.Node, path string, offset int) {
	l.at.values[path] = l.position(offset)
	it := v.Children()
	switch v.Kind {
	case unstable.Array:
		for i := 0; it.Next(); {
			c := it.Node()
			if c.Kind == unstable.Comment {
				continue
			}
			at := offset
			if c.Raw.Length > 0 { // it is 0 only for an array in an array
				at = int(c.Raw.Offset)
			}
			l.value(c, element(path, i), at)
			i++
		}
	case unstable.InlineTable:
		for it.Next() {
			if c := it.Node(); c.Kind == unstable.KeyValue {
				l.keyValue(c, path)
			}
		}
	default: // a scalar
	}
}

func (l *locator) position(offset int) position {
	// The number of newlines before offset, by bisection.
	lo, hi := 0, len(l.newlines)
	for lo < hi {
		if mid := (lo + hi) / 2; l.newlines[mid] < offset {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	start := 0
	if lo > 0 {
		start = l.newlines[lo-1] + 1
	}
	return position{lo + 1, offset - start + 1}
}

func child(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func element(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }
