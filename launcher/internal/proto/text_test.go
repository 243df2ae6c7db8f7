package proto

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/internal/place"
)

// fillText sets each string in v, and each slice of bytes, to a result of text. It returns the
// number of strings; a map counts as one string, and slices of bytes do not count.
func fillText(t testing.TB, v reflect.Value, text func() string) int {
	if v.Type() == reflect.TypeFor[place.Topology]() {
		return 0 // a topology has only numbers
	}
	count := 0
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			count += fillText(t, v.Field(i), text)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte(text()))
			break
		}
		v.Set(reflect.MakeSlice(v.Type(), 3, 3))
		for i := range v.Len() {
			count += fillText(t, v.Index(i), text)
		}
	case reflect.Array:
		for i := range v.Len() {
			count += fillText(t, v.Index(i), text)
		}
	case reflect.Map:
		puts := make(map[string]string)
		for range 3 {
			puts[text()] = text()
		}
		v.Set(reflect.ValueOf(puts)) // panics if the map has another type than puts
		count++
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		count += fillText(t, v.Elem(), text)
	case reflect.String:
		v.SetString(text())
		count++
	case reflect.Bool, reflect.Int, reflect.Int64, reflect.Uint8, reflect.Uint32, reflect.Uint64:
	default:
		t.Fatalf("a field of kind %v", v.Kind())
	}
	return count
}

// exact fills a message of the type of m with strings from text. It fails the test unless Parse
// returns the same message from the frame that Append makes. It returns the number of strings in
// the message.
func exact(t testing.TB, m Message, text func() string) int {
	v := reflect.New(reflect.TypeOf(m)).Elem()
	count := fillText(t, v, text)
	sent := v.Interface().(Message)
	if f, ok := sent.(FilePart); ok {
		f.Hash = strings.Repeat("a", hashDigits)
		sent = f
	}
	frame, err := Append(nil, sent)
	require.NoError(t, err, "%T", sent)
	got, err := Parse(Kind(frame[4]), frame[headBytes:])
	require.NoError(t, err, "%T", sent)
	require.Equal(t, sent, got, "%T", sent)
	return count
}

// TestText: each string of each kind of message must be the same after encoding and decoding, even
// if it has arbitrary bytes.
func TestText(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	odd := []string{
		"", "caf\xe9.dat", "\xff", "\xfe\x00", "\x00", "\x00\x00caf\xc3\xa9", "\x00\xff", "é", "\ufffd", "\xef\xbf", "\xed\xa0\x80",
		"\xf4\x90\x80\x80", "\xc0\x80", "\u2028<&>\"\\", "\U0010ffff", "\\ufffd", "\x7f\x80",
	}
	text := func() string {
		switch r.IntN(4) {
		case 0:
			return odd[r.IntN(len(odd))]
		case 1:
			return odd[r.IntN(len(odd))] + odd[r.IntN(len(odd))]
		}
		b := make([]byte, r.IntN(40))
		for i := range b {
			b[i] = byte(r.IntN(256))
		}
		return string(b)
	}
	with := 0
	for _, m := range empty[1:] {
		for range 100 {
			if exact(t, m, text) > 0 {
				with++
			}
		}
		for _, s := range odd {
			exact(t, m, func() string { return s })
		}
	}
	require.GreaterOrEqual(t, with, 14*100, "messages with strings")
}

// TestEscape checks the results of escaped, which must not change usual strings, and that unescaped
// returns the original strings. Parse must return an error for strings that escaped cannot return.
func TestEscape(t *testing.T) {
	for in, out := range map[string]string{
		"": "", "café": "café", "\ufffd": "\ufffd", "a\x00": "a\x00",
		"\xff": "\x00ÿ", "caf\xe9": "\x00café", "\x00": "\x00\x00", "\x00é": "\x00\x00Ã©",
	} {
		require.Equal(t, out, escaped(in), "%q", in)
		require.True(t, utf8.ValidString(out))
		back, ok := unescaped(out)
		require.True(t, ok)
		require.Equal(t, in, back)
	}
	_, err := Parse(KindLog, []byte(`{"line":"\u0000Ā"}`))
	require.ErrorIs(t, err, ErrFrame)
	_, err = Parse(KindFence, []byte(`{"n":1,"puts":{"a":"b","\u0000€":"x"}}`))
	require.ErrorIs(t, err, ErrFrame)
}

// TestShared: escapeAll must not change the message, must copy the parts that it changes, and must
// share all other parts with the message.
func TestShared(t *testing.T) {
	env := []string{"A=b", "PATH=/caf\xe9"}
	p := Prepare{Apps: []App{{Argv: []string{"a"}, Env: env}}, Plans: []Plan{{Ranks: []Rank{{}}}}}
	e := escapeAll(p).(Prepare)
	require.Equal(t, "PATH=/caf\xe9", env[1])
	require.Equal(t, []string{"A=b", "\x00PATH=/café"}, e.Apps[0].Env)
	require.Same(t, &p.Plans[0], &e.Plans[0])
	require.Same(t, &p.Apps[0].Argv[0], &e.Apps[0].Argv[0])
	env[1] = ""
	e = escapeAll(p).(Prepare)
	require.Same(t, &p.Apps[0], &e.Apps[0])
}

// FuzzText does what TestText does, with arbitrary strings.
func FuzzText(f *testing.F) {
	for k := range kinds {
		f.Add(byte(k), "caf\xe9", "\x00é")
	}
	f.Fuzz(func(t *testing.T, kind byte, a, b string) {
		if kind == 0 || int(kind) >= kinds {
			return
		}
		n := 0
		exact(t, empty[kind], func() string {
			n++
			return [...]string{a, b, a + b, b + a}[n%4]
		})
	})
}
