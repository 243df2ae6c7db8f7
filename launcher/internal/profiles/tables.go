package profiles

import (
	"encoding/binary"

	"github.com/google/pprof/profile"
)

// Numbers of the fields of profile.proto.
const (
	fieldSampleType  = 1
	fieldSample      = 2
	fieldMapping     = 3
	fieldLocation    = 4
	fieldFunction    = 5
	fieldString      = 6
	fieldDropFrames  = 7
	fieldKeepFrames  = 8
	fieldTime        = 9
	fieldDuration    = 10
	fieldPeriodType  = 11
	fieldPeriod      = 12
	fieldDefaultType = 14

	typeName, typeUnit = 1, 2

	sampleLocation, sampleValue, sampleLabel    = 1, 2, 3
	labelKey, labelText, labelNumber, labelUnit = 1, 2, 3, 4

	mappingID, mappingStart, mappingLimit, mappingOffset, mappingFile, mappingBuild = 1, 2, 3, 4, 5, 6
	mappingFunctions, mappingFiles, mappingLines, mappingInline                     = 7, 8, 9, 10
	locationID, locationMapping, locationAddress, locationLine, locationFolded      = 1, 2, 3, 4, 5
	lineFunction, lineNumber, lineColumn                                            = 1, 2, 3
	functionID, functionName, functionSystem, functionFile, functionLine            = 1, 2, 3, 4, 5
	wireVarint, wireBytes                                                           = 0, 2
)

// appendAlways appends an integer field.
func appendAlways(b []byte, field int, v int64) []byte {
	b = binary.AppendUvarint(b, uint64(field)<<3|wireVarint)
	return binary.AppendUvarint(b, uint64(v))
}

// appendInt appends an integer field unless v is 0, the default.
func appendInt(b []byte, field int, v int64) []byte {
	if v == 0 {
		return b
	}
	return appendAlways(b, field, v)
}

// appendMessage appends a field with a message or a string.
func appendMessage[T []byte | string](b []byte, field int, m T) []byte {
	b = binary.AppendUvarint(b, uint64(field)<<3|wireBytes)
	b = binary.AppendUvarint(b, uint64(len(m)))
	return append(b, m...)
}

// tables gives numbers to what the profiles have in common. Equal elements of different profiles get the
// same number.
type tables struct {
	texts     map[string]int64
	functions map[function]uint64
	mappings  map[mapping]*placed
	locations map[location]uint64
	added     []byte // encoded elements that take has not returned yet
}

// function, mapping and location are equal if the elements are.
type function struct {
	name, system, file string
	line               int64
}

// mapping has no address, because ranks may have the same file at different addresses.
type mapping struct {
	size, offset uint64
	file, build  string
}

type location struct {
	mapping uint64
	address uint64 // relative to the mapping
	lines   string // encoded
	folded  bool
}

// placed is a mapping that has a number, at the address that it has in the first profile with it.
type placed struct{ number, start uint64 }

func newTables() tables {
	t := tables{
		texts: make(map[string]int64), functions: make(map[function]uint64),
		mappings: make(map[mapping]*placed), locations: make(map[location]uint64),
	}
	t.text("") // must have number 0
	return t
}

// take returns the encoded elements that are new since the last call.
func (t *tables) take() []byte {
	b := t.added
	t.added = nil
	return b
}

// text returns the number of a string.
func (t *tables) text(s string) int64 {
	n, ok := t.texts[s]
	if !ok {
		n = int64(len(t.texts))
		t.texts[s] = n
		t.added = appendMessage(t.added, fieldString, s)
	}
	return n
}

// function returns the number of a function; 0: f is nil.
func (t *tables) function(f *profile.Function) uint64 {
	if f == nil {
		return 0
	}
	key := function{f.Name, f.SystemName, f.Filename, f.StartLine}
	n, ok := t.functions[key]
	if !ok {
		n = uint64(len(t.functions)) + 1
		t.functions[key] = n
		m := appendInt(nil, functionID, int64(n))
		m = appendInt(m, functionName, t.text(f.Name))
		m = appendInt(m, functionSystem, t.text(f.SystemName))
		m = appendInt(m, functionFile, t.text(f.Filename))
		t.added = appendMessage(t.added, fieldFunction, appendInt(m, functionLine, f.StartLine))
	}
	return n
}

// mapping returns a mapping with its number; nil: m is nil.
func (t *tables) mapping(m *profile.Mapping) *placed {
	if m == nil {
		return nil
	}
	key := mapping{m.Limit - m.Start, m.Offset, m.File, m.BuildID}
	p := t.mappings[key]
	if p == nil {
		p = &placed{uint64(len(t.mappings)) + 1, m.Start}
		t.mappings[key] = p
		b := appendInt(nil, mappingID, int64(p.number))
		b = appendInt(b, mappingStart, int64(m.Start))
		b = appendInt(b, mappingLimit, int64(m.Limit))
		b = appendInt(b, mappingOffset, int64(m.Offset))
		b = appendInt(b, mappingFile, t.text(m.File))
		b = appendInt(b, mappingBuild, t.text(m.BuildID))
		b = appendBool(b, mappingFunctions, m.HasFunctions)
		b = appendBool(b, mappingFiles, m.HasFilenames)
		b = appendBool(b, mappingLines, m.HasLineNumbers)
		t.added = appendMessage(t.added, fieldMapping, appendBool(b, mappingInline, m.HasInlineFrames))
	}
	return p
}

// location returns the number of a location.
func (t *tables) location(l *profile.Location) uint64 {
	key := location{address: l.Address, folded: l.IsFolded}
	address := l.Address
	if p := t.mapping(l.Mapping); p != nil {
		key.mapping, key.address = p.number, l.Address-l.Mapping.Start
		address = key.address + p.start
	}
	var lines []byte
	for _, at := range l.Line {
		m := appendInt(nil, lineFunction, int64(t.function(at.Function)))
		m = appendInt(appendInt(m, lineNumber, at.Line), lineColumn, at.Column)
		lines = appendMessage(lines, locationLine, m)
	}
	key.lines = string(lines)
	n, ok := t.locations[key]
	if !ok {
		n = uint64(len(t.locations)) + 1
		t.locations[key] = n
		m := appendInt(nil, locationID, int64(n))
		m = appendInt(m, locationMapping, int64(key.mapping))
		m = appendInt(m, locationAddress, int64(address))
		m = append(m, lines...)
		t.added = appendMessage(t.added, fieldLocation, appendBool(m, locationFolded, l.IsFolded))
	}
	return n
}

func appendBool(b []byte, field int, v bool) []byte {
	if v {
		return appendAlways(b, field, 1)
	}
	return b
}
