package job

import (
	"bytes"
	"fmt"

	"github.com/pelletier/go-toml/v2/unstable"
)

// position is a place in a job file. Lines and columns count from 1, and columns count bytes.
type position struct{ line, column int }

// positions has the positions of keys and of their values, by the full path of the key, such as
// "app[1].np". The value of a table that has a header is at the position of its name in the header.
type positions struct {
	keys, values map[string]position
}

// locate finds the positions of all keys and values in doc. doc must have no syntax errors: the
// caller has decoded it by package toml.
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

// value returns the position of a key's value. If that is not known, it returns what key returns.
func (p positions) value(path string) position {
	if at, ok := p.values[path]; ok {
		return at
	}
	return p.key(path)
}

// nearest returns the position of path in m. If m does not have path, it tries the paths of the
// tables and arrays that contain it, from the innermost to the outermost, and finally returns line
// 1, column 1.
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

// locator is the state of locate.
type locator struct {
	doc      []byte
	newlines []int          // offsets of the newlines in doc
	at       positions      // what locate has found
	tables   map[string]int // by path of an array of tables: the number of its elements that locate has seen
}

// header records the positions of the keys in a header: [a.b] or, if array is set, [[a.b]]. It
// returns the path of the table that begins with this header.
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

// keyValue records the positions of a key and its value. table is the path of the table in which
// the key stands.
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
	// The parser does not give the offset of the value, which begins after "=" and blanks.
	rest := bytes.TrimLeft(l.doc[end:], " \t")
	rest = bytes.TrimLeft(bytes.TrimPrefix(rest, []byte("=")), " \t")
	l.value(e.Value(), path, len(l.doc)-len(rest))
}

// value records the position of a value, and of the values inside of it. path is that of the value,
// and offset is where it begins in doc.
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
			// The length is 0 for an array inside of an array. The parser does not give the offset
			// of the inner array, so that gets the offset of the outer one.
			if c.Raw.Length > 0 {
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

// position returns the line and column of an offset in the document.
func (l *locator) position(offset int) position {
	// lo becomes the number of newlines before offset, by bisection.
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

// child returns the path of a key of a table. path is the path of the table; "" is the top level of
// the file.
func child(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// element returns the path of element i of an array. path is the path of the array.
func element(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }
