package proto

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The strings in messages may contain any bytes, because arguments, paths and PMI values come from
// users. JSON strings must be valid UTF-8. So a string that is not valid UTF-8 is escaped: its
// escaped form is the constant escape, followed by one Unicode character for each byte of the
// string. The code point of the character is the value of the byte. A string that begins with
// escape is escaped, too. All other strings stay as they are.
const escape = "\x00"

// escaped returns s, or its escaped form if it needs one.
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

// unescaped undoes escaped: it returns the string for which escaped returns s. ok is false if s has
// a character after escape that is not the value of a byte.
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

// rewritten returns v with f applied to each string in it, also to the keys of maps. Other
// goroutines may use what v refers to, so rewritten does not change that: it copies the parts that
// f changes. If f changes nothing, rewritten returns v itself, and changed is false.
func rewritten(v reflect.Value, f func(string) string) (out reflect.Value, changed bool) {
	out = v
	// own makes out a copy of v, if it is not one yet, and returns out, which may now be changed.
	own := func() reflect.Value {
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
		texts, _ := v.Interface().(map[string]string) // all maps in messages have this type
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

// escapeAll returns m with escaped applied to all its strings. It does not change m, but the result
// may share memory with m.
func escapeAll(m Message) any {
	v, _ := rewritten(reflect.ValueOf(m), escaped)
	return v.Interface()
}

// unescapeAll undoes escapeAll: it returns m with unescaped applied to all its strings. It returns
// an error if one of them is no result of escaped.
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
