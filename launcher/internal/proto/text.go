package proto

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A string of a message is bytes: arguments, paths and what ranks put are a user's,
// and of no encoding. JSON has text alone. So a string that is no UTF-8 stands in it
// as escape and then, for each byte, the character of that number. One that begins
// with escape is written so, too; all others stand as they are.
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

// unescaped is the reverse of escaped; ok is false for what no escaped has made.
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

// rewritten is v with f of each string in it, be it a key; changed is false, and v as
// it was, where f changes none. What v refers to is shared with others and stays as
// it is.
func rewritten(v reflect.Value, f func(string) string) (out reflect.Value, changed bool) {
	out = v
	own := func() reflect.Value { // out, which may be changed
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
		texts, _ := v.Interface().(map[string]string) // as all maps of messages are
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

// escapeAll is a message as JSON can have it.
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
			err = fmt.Errorf("a character that is no byte in %s", strconv.QuoteToASCII(s[:min(len(s), 40)]))
		}
		return text
	})
	if changed {
		m = v.Interface().(M)
	}
	return m, err
}
