package wire

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPMIParse(t *testing.T) {
	for _, c := range []struct {
		line string
		want PMIMessage
	}{
		{"cmd=init pmi_version=1 pmi_subversion=1\n", NewPMI("init", "pmi_version", "1", "pmi_subversion", "1")},
		{"cmd=get_result rc=0 msg=success value=a=b=c found=TRUE", NewPMI("get_result", "rc", "0", "msg", "success", "value", "a=b=c", "found", "TRUE")},
		{"cmd=put  kvsname=k key=a value=", NewPMI("put", "kvsname", "k", "key", "a", "value", "")},
		{"cmd=x msg=some words here", NewPMI("x", "msg", "some")},
		{"rc=0 cmd=late", NewPMI("late", "rc", "0")},
		{"mcmd=spawn", PMIMessage{Cmd: "spawn", Multi: true}},
	} {
		got, err := ParsePMI([]byte(c.line))
		require.NoError(t, err, c.line)
		require.Equal(t, c.want, got, c.line)
	}
}

func TestPMIParseErrors(t *testing.T) {
	for _, c := range []struct {
		line string
		want error
	}{
		{"", ErrPMINoCmd},
		{"rc=0", ErrPMINoCmd},
		{"cmd=", ErrPMINoCmd},
		{"cmd=a\ncmd=b\n", ErrPMINewline},
		{"cmd=a =b", ErrPMIKey},
		{"cmd=a b=\x01", ErrPMIValue},
		{`cmd=a b=c\d`, ErrPMIValue},
		{"cmd=" + strings.Repeat("a", PMIMaxLine), ErrPMILong},
	} {
		_, err := ParsePMI([]byte(c.line))
		require.ErrorIs(t, err, c.want, c.line)
	}
}

func TestPMIAppendErrors(t *testing.T) {
	for _, c := range []struct {
		m    PMIMessage
		want error
	}{
		{PMIMessage{}, ErrPMINoCmd},
		{NewPMI("a b"), ErrPMIValue},
		{NewPMI("put", "a=b", "c"), ErrPMIKey},
		{NewPMI("put", "", "c"), ErrPMIKey},
		{NewPMI("put", "key", "two words"), ErrPMIValue},
		{NewPMI("put", "key", "line\n"), ErrPMIValue},
		{NewPMI("put", "key", strings.Repeat("v", PMIMaxLine)), ErrPMILong},
	} {
		dst, err := c.m.Append([]byte("before"))
		require.ErrorIs(t, err, c.want)
		require.Equal(t, "before", string(dst))
	}
}

func TestPMILine(t *testing.T) {
	line, rest, ok, err := PMILine([]byte("cmd=a\ncmd=b"))
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "cmd=a", string(line))
	require.Equal(t, "cmd=b", string(rest))

	_, _, ok, err = PMILine(rest)
	require.NoError(t, err)
	require.False(t, ok)

	_, _, _, err = PMILine(make([]byte, PMIMaxLine))
	require.ErrorIs(t, err, ErrPMILong)
}

func FuzzPMI(f *testing.F) {
	for _, m := range []PMIMessage{
		NewPMI("init", "pmi_version", "1", "pmi_subversion", "1"),
		NewPMI("response_to_init", "pmi_version", "1", "pmi_subversion", "1", "rc", "0"),
		NewPMI("maxes", "kvsname_max", "256", "keylen_max", "64", "vallen_max", "1024"),
		NewPMI("put", "kvsname", "kvs_123_0", "key", "a", "value", "b=c"),
		NewPMI("get_result", "rc", "-1", "msg", "key_a_not_found"),
		NewPMI("barrier_in"),
		{Cmd: "spawn", Multi: true},
	} {
		line, err := m.Append(nil)
		require.NoError(f, err)
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if line, rest, ok, err := PMILine(data); err == nil && ok {
			require.Equal(t, string(data), string(line)+"\n"+string(rest))
		}
		m, err := ParsePMI(data)
		if err != nil {
			return
		}
		line, err := m.Append(nil)
		if err != nil {
			// Append cannot write what ParsePMI accepts if the line has two cmd fields, or is too
			// long with its newline.
			return
		}
		again, err := ParsePMI(line)
		require.NoError(t, err)
		require.Equal(t, m, again)
	})
}
