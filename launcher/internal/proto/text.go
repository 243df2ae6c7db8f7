package proto

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The strings of messages are bytes of any encoding, because arguments, paths and PMI values are a
// user's. JSON strings must be UTF-8. So a string that is not UTF-8 is encoded as escape and then, for
// each byte, the character with that number. A string that begins with escape is encoded in the same
// way. All other strings are encoded as they are.
const escape = "\x00"

func escaped(s string) string {
	if utf8.ValidString(s) && !strings.HasPrefix(s, escape) {
		return s
	}
	var b strings.Builder
	b.Grow(len(escape) + 2*len(s))
	b.WriteString(escape)
	for i := range len(s) {
		b.WriteRune(rune(s[i]))
	}
	return b.String()
}

// unescaped is the reverse of escaped. ok is false if escaped cannot have made s.
func unescaped(s string) (_ string, ok bool) {
	text, found := strings.CutPrefix(s, escape)
	if !found {
		return s, true
	}
	b := make([]byte, 0, len(text))
	for _, r := range text {
		if r > 0xff {
			return s, false
		}
		b = append(b, byte(r))
	}
	return string(b), true
}

// rewritten applies f to each string in v, also to the keys of maps. It changes neither v nor what v
// refers to, because other goroutines may use it: it copies what f changes. If f changes nothing, it
// returns v itself, and changed is false.
func rewritten(v reflect.Value, f func(string) string) (out reflect.Value, changed bool) {
	out = v
	own := func() reflect.Value { // returns a copy of v that may be changed
		if !changed {
			out, changed = reflect.New(v.Type()).Elem(), true
			out.Set(v)
		}
		return out
	}
	switch v.Kind() {
	case reflect.String:
		if s := f(v.String()); s != v.String() {
			own().SetString(s)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if e, ok := rewritten(v.Field(i), f); ok {
				own().Field(i).Set(e)
			}
		}
	case reflect.Pointer:
		if v.IsNil() {
			break
		}
		if e, ok := rewritten(v.Elem(), f); ok {
			p := reflect.New(v.Type().Elem())
			p.Elem().Set(e)
			own().Set(p)
		}
	case reflect.Slice:
		if k := v.Type().Elem().Kind(); k == reflect.Uint8 || k == reflect.Int {
			break
		}
		for i := range v.Len() {
			e, ok := rewritten(v.Index(i), f)
			if ok && !changed {
				list := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
				reflect.Copy(list, v)
				own().Set(list)
			}
			if ok {
				out.Index(i).Set(e)
			}
		}
	case reflect.Map:
		texts, _ := v.Interface().(map[string]string) // all maps of messages have this type
		for k, e := range texts {
			if f(k) == k && f(e) == e {
				continue
			}
			all := make(map[string]string, len(texts))
			for k, e := range texts {
				all[f(k)] = f(e)
			}
			own().Set(reflect.ValueOf(all))
			break
		}
	}
	return out, changed
}

// escapeAll returns m with all strings escaped.
func escapeAll(m Message) any {
	v, _ := rewritten(reflect.ValueOf(m), escaped)
	return v.Interface()
}

// unescapeAll is the reverse of escapeAll.
func unescapeAll[M Message](m M) (M, error) {
	var err error
	v, changed := rewritten(reflect.ValueOf(m), func(s string) string {
		text, ok := unescaped(s)
		if !ok && err == nil {
			err = fmt.Errorf("not the code of a byte in %s", strconv.QuoteToASCII(s[:min(len(s), 40)]))
		}
		return text
	})
	if changed {
		m = v.Interface().(M)
	}
	return m, err
}
