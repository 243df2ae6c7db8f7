package proto

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The strings in messages may have any bytes, because arguments, paths and PMI values come from
// users. JSON strings must be valid UTF-8. So a string that is not valid UTF-8 is escaped: its
// escaped form is the constant escape, followed by one Unicode character for each byte, whose
// number is the value of the byte. A string that begins with escape is escaped, too. All other
// strings stay as they are.
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

// unescaped returns the string of which s is the result of escaped. ok is false if there is no such
// string.
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

// rewritten returns v with f applied to each string in it, also to the keys of maps. It does not
// change v or anything that v refers to, because other goroutines may use it: it copies the parts
// that f changes. If f changes nothing, rewritten returns v itself, and changed is false.
func rewritten(v reflect.Value, f func(string) string) (out reflect.Value, changed bool) {
	out = v
	own := func() reflect.Value { // returns out, after making it a copy of v that rewritten may change
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

// escapeAll returns m with escaped applied to all its strings. It does not change m.
func escapeAll(m Message) any {
	v, _ := rewritten(reflect.ValueOf(m), escaped)
	return v.Interface()
}

// unescapeAll returns the message of which m is the result of escapeAll. It returns an error if
// there is no such message.
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
