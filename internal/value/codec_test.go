package value

import (
	"bytes"
	"encoding/gob"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/elem"
)

// upper is a codec of strings that keeps upper-case text.
type upper struct{ name string }

func (u upper) Name() string { return u.name }

func (upper) Append(b []byte, v any) ([]byte, error) {
	s, ok := v.(string)
	if !ok {
		return nil, errors.New("not a string")
	}
	return append(b, strings.ToUpper(s)...), nil
}

func (upper) Decode(b []byte, v any) error {
	*v.(*string) = string(b) // panics if the program receives another type
	return nil
}

func TestCodecs(t *testing.T) {
	for _, codec := range []Codec{nil, Gob{}, JSON{}, upper{"upper"}, upper{strings.Repeat("long ", 100)}, upper{}} {
		b, err := Encode([]byte("before"), "text", codec)
		require.NoError(t, err)
		b, ok := bytes.CutPrefix(b, []byte("before"))
		require.True(t, ok)
		var got string
		require.NoError(t, DecodeBy(b, &got, codec))
		require.Equal(t, "text", strings.ToLower(got))

		for _, other := range []Codec{Gob{}, JSON{}, upper{"lower"}} {
			if isGob(codec) && isGob(other) || codec == other {
				continue
			}
			require.ErrorIs(t, DecodeBy(b, &got, other), elem.ErrType)
			require.ErrorContains(t, DecodeBy(b, &got, other), "pass the same codec on both sides")
		}
		var n int
		require.ErrorIs(t, DecodeBy(b, &n, codec), elem.ErrType)
		require.ErrorIs(t, DecodeBy(b, n, codec), elem.ErrType)
		require.ErrorIs(t, DecodeBy(b, nil, codec), elem.ErrType)
		require.ErrorIs(t, DecodeBy([]byte("noise"), &got, codec), elem.ErrType)
		_, err = Encode(nil, func() {}, codec)
		require.ErrorIs(t, err, elem.ErrType)
	}
}

// TestInterfaceValues checks that a pointer to an interface variable is encoded with the concrete
// type of its value, so that the receiver decodes it into an interface variable.
func TestInterfaceValues(t *testing.T) {
	gob.Register(wrapped{})
	for _, v := range []any{7, "text", wrapped{3}, nil} {
		b, err := Append(nil, &v)
		require.NoError(t, err)
		var got any
		require.NoError(t, Decode(b, &got))
		require.Equal(t, v, got)
	}
}

// FuzzDecodeBy decodes arbitrary bytes by each kind of codec. It checks that DecodeBy does not
// panic.
func FuzzDecodeBy(f *testing.F) {
	codecs := []Codec{Gob{}, JSON{}, upper{"upper"}}
	for _, codec := range codecs {
		b, err := Encode(nil, "text", codec)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Add([]byte(magicCodec + "\xffjson"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, codec := range codecs {
			var s string
			var n int
			_, _ = DecodeBy(b, &s, codec), DecodeBy(b, &n, codec)
		}
	})
}
