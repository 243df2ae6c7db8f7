// Package params holds the table of weft's tunables: for each its TOML key, environment variable,
// default, unit and help text. A flag overrides the job file, the job file overrides the
// environment, and the environment overrides the default. Set.Set replaces any earlier value, so
// its callers set the values in the reverse order.
package params

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Kind is the type of a parameter's value.
type Kind int

// The kinds of value.
const (
	String   Kind = iota // any text
	Int                  // a decimal integer
	Bytes                // a number of bytes, as ParseBytes reads it
	Duration             // as time.ParseDuration reads it
	Bool                 // true or false, or 1 or 0
	List                 // names, separated by commas
)

// Param describes one tunable.
type Param struct {
	Key     string // key in a job file, for example "transport.tcp.interface"
	Kind    Kind
	Default string
	Unit    string   // for example "bytes"; empty if Kind implies the unit
	Choices []string // permitted values of a String, or of the elements of a List; nil: any
	Help    string
}

// Env returns the name of the environment variable that sets the parameter: WEFT_ and the key in
// upper case with underscores.
func (p Param) Env() string {
	return "WEFT_" + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(p.Key))
}

// Source is the origin of a parameter's value.
type Source string

// The sources, weakest first.
const (
	FromDefault Source = "default"
	FromUser    Source = "user's file"
	FromEnv     Source = "environment"
	FromFile    Source = "job file"
	FromFlag    Source = "flag"
)

// Value is the text of a parameter's value, and its source.
type Value struct {
	Text   string
	Source Source
}

// Set holds the values of all parameters. In the zero Set all parameters have their defaults. A nil
// *Set has the same values, but its methods Set and Explicit panic.
type Set struct {
	values map[string]Value
}

// Lookup returns the parameter with a key, and whether there is one.
func Lookup(key string) (Param, bool) {
	for _, p := range Table {
		if p.Key == key {
			return p, true
		}
	}
	return Param{}, false
}

// FromEnviron returns a Set with the values of the parameters' variables (see Param.Env) in
// environ, which has the form of os.Environ. An empty variable counts as not set. FromEnviron
// returns an error if a variable's value is not a possible value of its parameter. It ignores other
// variables.
func FromEnviron(environ []string) (*Set, error) {
	s := &Set{}
	env := make(map[string]string, len(environ))
	for _, kv := range environ {
		if k, v, ok := strings.Cut(kv, "="); ok && strings.HasPrefix(k, "WEFT_") {
			env[k] = v
		}
	}
	for _, p := range Table {
		if v, ok := env[p.Env()]; ok && v != "" {
			if err := s.Set(p.Key, v, FromEnv); err != nil {
				return nil, fmt.Errorf("%s: %w", p.Env(), err)
			}
		}
	}
	return s, nil
}

// Set sets the parameter with a key to the value text, regardless of the source of its earlier
// value. It returns an error if there is no such parameter, or if text is not a possible value of
// the parameter; see [Param.Check].
func (s *Set) Set(key, text string, from Source) error {
	p, ok := Lookup(key)
	if !ok {
		return fmt.Errorf("unknown parameter %q", key)
	}
	if err := p.Check(text); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	if s.values == nil {
		s.values = make(map[string]Value)
	}
	s.values[key] = Value{Text: text, Source: from}
	return nil
}

// Get returns a parameter's value. It panics if no parameter has the key.
func (s *Set) Get(key string) Value {
	if s != nil {
		if v, ok := s.values[key]; ok {
			return v
		}
	}
	p, ok := Lookup(key)
	if !ok {
		panic("params: no parameter " + key)
	}
	return Value{Text: p.Default, Source: FromDefault}
}

// Explicit returns the keys of the parameters that have been set, sorted.
func (s *Set) Explicit() []string {
	return slices.Sorted(maps.Keys(s.values))
}

// String returns the text of the value of any parameter.
func (s *Set) String(key string) string { return s.Get(key).Text }

// Int returns the value of an Int or Bytes parameter.
func (s *Set) Int(key string) int {
	n, err := ParseBytes(s.Get(key).Text)
	if err != nil {
		panic(fmt.Sprintf("params: %s: %v", key, err)) // cannot happen: Set has checked the text
	}
	return n
}

// Duration returns the value of a Duration parameter.
func (s *Set) Duration(key string) time.Duration {
	d, err := time.ParseDuration(s.Get(key).Text)
	if err != nil {
		panic(fmt.Sprintf("params: %s: %v", key, err)) // cannot happen: Set has checked the text
	}
	return d
}

// Bool returns the value of a Bool parameter.
func (s *Set) Bool(key string) bool { return IsTrue(s.Get(key).Text) }

// IsTrue reports whether the text of a Bool parameter is one of its two forms of true.
func IsTrue(text string) bool { return text == "true" || text == "1" }

// List returns the elements of a List parameter. An empty text has no elements.
func (s *Set) List(key string) []string { return splitList(s.Get(key).Text) }

func splitList(text string) []string {
	if text == "" {
		return nil
	}
	l := strings.Split(text, ",")
	for i := range l {
		l[i] = strings.TrimSpace(l[i])
	}
	return l
}

// Check returns an error if text is not a possible value of p.
func (p Param) Check(text string) error {
	var err error
	switch p.Kind {
	case Int:
		_, err = strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%q is not an integer", text)
		}
	case Bytes:
		_, err = ParseBytes(text)
	case Duration:
		_, err = time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("%q is not a duration such as 10s or 5m", text)
		}
	case Bool:
		if !IsTrue(text) && text != "false" && text != "0" {
			return fmt.Errorf("%q is neither true nor false", text)
		}
	case String:
		return p.checkChoice(text)
	case List:
		for _, e := range splitList(text) {
			if err := p.checkChoice(e); err != nil {
				return err
			}
		}
	}
	return err
}

func (p Param) checkChoice(text string) error {
	if p.Choices == nil || slices.Contains(p.Choices, text) {
		return nil
	}
	return fmt.Errorf("%q is none of %s", text, strings.Join(p.Choices, ", "))
}

// ParseBytes reads a number of bytes: a decimal integer, not negative, that may end in k, m or g
// (or K, M, G) for 2¹⁰, 2²⁰ or 2³⁰. The number is at most 2⁶².
func ParseBytes(text string) (int, error) {
	num, unit := text, 1
	if n := len(text); n > 1 {
		switch text[n-1] {
		case 'k', 'K':
			num, unit = text[:n-1], 1<<10
		case 'm', 'M':
			num, unit = text[:n-1], 1<<20
		case 'g', 'G':
			num, unit = text[:n-1], 1<<30
		}
	}
	v, err := strconv.Atoi(num)
	if err != nil || v < 0 || v > (1<<62)/unit {
		return 0, fmt.Errorf("%q is not a number of bytes such as 4096, 64k or 1m", text)
	}
	return v * unit, nil
}
