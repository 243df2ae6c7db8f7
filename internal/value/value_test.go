package value

import (
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/weft-hpc/weft/internal/elem"
)

type tree struct {
	Name     string
	Children []*tree
	Index    map[string][]float64
}

type wrapped struct{ V any }

type older struct{ Name string }

// values returns values of types that this package or gob encodes in different ways.
func values() []any {
	return []any{
		7, "text", []int{1, 2}, []byte("bytes"), map[int]string{1: "a"}, 2.5, true, [2]complex64{1, 2i},
		tree{Name: "a", Children: []*tree{{Name: "b"}}, Index: map[string][]float64{"x": {1}}},
		&tree{Name: "pointer"}, tree{}, wrapped{3}, wrapped{"three"}, struct{ Deep [][]wrapped }{[][]wrapped{{{1}}}},
		time.Unix(5, 6).UTC(), struct{ At []time.Time }{[]time.Time{time.Unix(1, 2).UTC()}},
		tree{Name: strings.Repeat("long ", Kept)},
	}
}

func decodeLike(b []byte, v any) (any, error) {
	t := reflect.TypeOf(v)
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	got := reflect.New(t)
	err := Decode(b, got.Interface())
	if reflect.TypeOf(v).Kind() == reflect.Pointer {
		return got.Interface(), err
	}
	return got.Elem().Interface(), err
}

// TestValuesAgainstGob encodes each value three times. It checks that each message is decoded as
// the value, also in reverse order and with new decoders, so that no message needs another one.
func TestValuesAgainstGob(t *testing.T) {
	gob.Register(wrapped{})
	var sent [][]byte
	for range 3 {
		for _, v := range values() {
			b, err := Append(nil, v)
			require.NoError(t, err)
			sent = append(sent, b)
		}
	}
	for range 2 {
		for i := len(sent) - 1; i >= 0; i-- {
			v := values()[i%len(values())]
			got, err := decodeLike(sent[i], v)
			require.NoError(t, err, "%T", v)
			require.Equal(t, v, got)
		}
		valueDecoders.after = nil
	}
	b, err := Append(nil, tree{Name: "x"})
	require.NoError(t, err)
	var o older
	require.NoError(t, Decode(b, &o), "a type with fewer fields")
	require.Equal(t, "x", o.Name)
	var n int
	require.ErrorIs(t, Decode(b, &n), elem.ErrType)
	require.NoError(t, Decode(b, &o), "after an error")
}

// TestEncoderAfterAnError checks that values of a type can be encoded after the encoding of another
// value of that type has failed.
func TestEncoderAfterAnError(t *testing.T) {
	type pair struct{ A, B *int }
	one := 1
	for range 3 {
		_, err := Append(nil, []*int{&one, nil})
		require.ErrorIs(t, err, elem.ErrType)
		b, err := Append(nil, []*int{&one})
		require.NoError(t, err)
		got, err := decodeLike(b, []*int{})
		require.NoError(t, err)
		require.Equal(t, []*int{&one}, got)
		b, err = Append(nil, pair{A: &one})
		require.NoError(t, err)
		got, err = decodeLike(b, pair{})
		require.NoError(t, err)
		require.Equal(t, pair{A: &one}, got)
	}
}

// TestValuesInManyGoroutines encodes and decodes values in goroutines that share encoders and
// decoders. Each decoded value must equal the one that was encoded.
func TestValuesInManyGoroutines(t *testing.T) {
	var g errgroup.Group
	for range 8 {
		g.Go(func() error {
			for range 200 {
				for _, v := range values()[:12] {
					b, err := Append(nil, v)
					if err != nil {
						return err
					}
					got, err := decodeLike(b, v)
					if err != nil {
						return err
					}
					if !reflect.DeepEqual(v, got) {
						return fmt.Errorf("%v was decoded as %v", v, got)
					}
				}
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
}

// TestDecodersAreBounded checks that messages cannot make a rank keep more than decodersKept
// decoders.
func TestDecodersAreBounded(t *testing.T) {
	b, err := Append(nil, 3)
	require.NoError(t, err)
	for i := range 3 * decodersKept {
		var stream [8]byte
		binary.LittleEndian.PutUint64(stream[:], uint64(i))
		m := append(binary.LittleEndian.AppendUint32([]byte(magicValue), 8), stream[:]...)
		_ = Decode(append(m, b[valueHead:]...), new(int))
		require.LessOrEqual(t, len(valueDecoders.after), decodersKept)
	}
}

// FuzzDecodeValue decodes arbitrary bytes. It checks that Decode does not panic, and that correct
// messages can be decoded afterwards.
func FuzzDecodeValue(f *testing.F) {
	gob.Register(wrapped{})
	for _, v := range values()[:16] {
		b, err := Append(nil, v)
		require.NoError(f, err)
		f.Add(b)
		f.Add(append(bytes.Clone(b), b[magicSize:]...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, v := range values()[:16] {
			_, _ = decodeLike(b, v)
			good, err := Append(nil, v)
			require.NoError(t, err)
			got, err := decodeLike(good, v)
			require.NoError(t, err)
			require.Equal(t, v, got)
		}
	})
}
