// Package profiles merges the profiles of many ranks into one file in the format of pprof, in which
// each sample has labels with its origin.
//
// A profile is a message of protocol buffers (profile.proto of github.com/google/pprof), compressed by
// gzip. The file grows with each rank, but the memory of a Writer does not: it writes the samples of a
// rank at once. It keeps only the tables of strings, functions, mappings and locations, which the ranks of
// a program have in common. The format allows that, because the fields of a message may come in any
// order, and the elements of a table may stand apart:
//
//	rank 0:  sample types │ strings, mappings, functions, locations │ samples
//	rank 1:  strings, … that are new                                │ samples
//	…
//	Close:   time, duration, period
package profiles

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"

	"github.com/google/pprof/profile"
)

// maxRaw is the largest length of one rank's profile without compression, in bytes.
const maxRaw = 32 << 20

// ErrInvalid is the error for bytes that are not a profile, or not one of the same kind as those before.
var ErrInvalid = errors.New("not a profile")

// Label is a label of all samples of a rank. If Value is a number, the label is numeric, because
// pprof -tagfocus=rank=2 finds only numeric labels.
type Label struct{ Key, Value string }

// encode returns the label as a message.
func (l Label) encode(t *tables) []byte {
	m := appendInt(nil, labelKey, t.text(l.Key))
	if n, err := strconv.ParseInt(l.Value, 10, 64); err == nil && strconv.FormatInt(n, 10) == l.Value {
		return appendInt(appendInt(m, labelNumber, n), labelUnit, t.text("count")) // pprof shows no unit then
	}
	return appendInt(m, labelText, t.text(l.Value))
}

// Writer writes the merged profile.
type Writer struct {
	zip *gzip.Writer
	buf []byte // encoded fields that are to be written
	tables

	types              []valueType // of the samples; set by the first profile
	period             int64
	periodType         valueType
	begun, duration    int64 // earliest time and longest duration of the profiles, in ns
	defaultType        string
	dropFrame, keepFrm string
}

// valueType is the type of the values of samples.
type valueType struct{ name, unit string }

// NewWriter returns a Writer that writes to w. The caller must call Close.
func NewWriter(w io.Writer) *Writer {
	return &Writer{zip: gzip.NewWriter(w), tables: newTables()}
}

// Add adds the profile of a rank, as the rank has written it, and gives each of its samples the labels,
// instead of labels of the same keys. If data is not a valid profile, or has other types of values than
// the profiles before, the error wraps ErrInvalid, and the merged profile is as before. Other errors are
// those of the io.Writer; after one of these, the caller must not use the Writer any more.
func (w *Writer) Add(data []byte, labels []Label) error {
	p, err := parse(data)
	if err != nil {
		return err
	}
	var types []valueType
	for _, t := range p.SampleType {
		types = append(types, valueType{t.Type, t.Unit})
	}
	switch {
	case w.types == nil:
		w.begin(p, types)
	case !slices.Equal(types, w.types):
		return fmt.Errorf("%w of the same kind: its values are %v, and those of others %v", ErrInvalid, types, w.types)
	}
	if p.TimeNanos > 0 && (w.begun == 0 || p.TimeNanos < w.begun) {
		w.begun = p.TimeNanos
	}
	w.duration = max(w.duration, p.DurationNanos)
	numbers := make(map[*profile.Location]uint64, len(p.Location))
	for _, s := range p.Sample {
		for _, l := range s.Location {
			if _, ok := numbers[l]; !ok {
				numbers[l] = w.location(l)
			}
		}
		if err := w.sample(s, numbers, labels); err != nil {
			return err
		}
	}
	return w.flush(0)
}

// parse parses a compressed profile. Its errors wrap ErrInvalid.
func parse(data []byte) (*profile.Profile, error) {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	raw, err := io.ReadAll(io.LimitReader(z, maxRaw+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if len(raw) > maxRaw {
		return nil, fmt.Errorf("%w: it has more than %d bytes", ErrInvalid, maxRaw)
	}
	p, err := profile.ParseUncompressed(raw)
	if err == nil {
		err = p.CheckValid()
	}
	if err == nil && len(p.SampleType) == 0 {
		err = errors.New("its samples have no values")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return p, nil
}

// begin takes what all profiles have in common from the first one.
func (w *Writer) begin(p *profile.Profile, types []valueType) {
	w.types = types
	for _, t := range types {
		w.buf = appendMessage(w.buf, fieldSampleType, w.valueType(t))
	}
	if p.PeriodType != nil {
		w.periodType = valueType{p.PeriodType.Type, p.PeriodType.Unit}
	}
	w.period, w.defaultType, w.dropFrame, w.keepFrm = p.Period, p.DefaultSampleType, p.DropFrames, p.KeepFrames
}

// sample writes a sample. numbers has the numbers of its locations.
func (w *Writer) sample(s *profile.Sample, numbers map[*profile.Location]uint64, own []Label) error {
	var m []byte
	for _, l := range s.Location {
		m = appendInt(m, sampleLocation, int64(numbers[l]))
	}
	for _, v := range s.Value {
		m = appendAlways(m, sampleValue, v)
	}
	for _, l := range own {
		m = appendMessage(m, sampleLabel, l.encode(&w.tables))
	}
	isOwn := func(key string) bool {
		return slices.ContainsFunc(own, func(l Label) bool { return l.Key == key })
	}
	for _, key := range slices.Sorted(maps.Keys(s.Label)) {
		for _, v := range s.Label[key] {
			if !isOwn(key) {
				m = appendMessage(m, sampleLabel, appendInt(appendInt(nil, labelKey, w.text(key)), labelText, w.text(v)))
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(s.NumLabel)) {
		for i, v := range s.NumLabel[key] {
			if isOwn(key) {
				continue
			}
			l := appendInt(appendInt(nil, labelKey, w.text(key)), labelNumber, v)
			if units := s.NumUnit[key]; i < len(units) {
				l = appendInt(l, labelUnit, w.text(units[i]))
			}
			m = appendMessage(m, sampleLabel, l)
		}
	}
	w.buf = append(w.buf, w.take()...)
	w.buf = appendMessage(w.buf, fieldSample, m)
	return w.flush(flushBytes)
}

func (w *Writer) valueType(t valueType) []byte {
	return appendInt(appendInt(nil, typeName, w.text(t.name)), typeUnit, w.text(t.unit))
}

// flushBytes is the number of encoded bytes after which they are written.
const flushBytes = 64 << 10

// flush writes the encoded fields if there are more than least bytes of them.
func (w *Writer) flush(least int) error {
	w.buf = append(w.buf, w.take()...)
	if len(w.buf) <= least {
		return nil
	}
	_, err := w.zip.Write(w.buf)
	w.buf = w.buf[:0]
	return err
}

// Close writes the end of the merged profile. It does not close the io.Writer. If no profile was added,
// the result has no samples and is of no use.
func (w *Writer) Close() error {
	b := w.buf
	b = appendInt(b, fieldDropFrames, w.text(w.dropFrame))
	b = appendInt(b, fieldKeepFrames, w.text(w.keepFrm))
	b = appendInt(b, fieldTime, w.begun)
	b = appendInt(b, fieldDuration, w.duration)
	if w.periodType != (valueType{}) {
		b = appendMessage(b, fieldPeriodType, w.valueType(w.periodType))
	}
	b = appendInt(b, fieldPeriod, w.period)
	b = appendInt(b, fieldDefaultType, w.text(w.defaultType))
	w.buf = b
	return errors.Join(w.flush(0), w.zip.Close())
}
