package proto

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestOneLine(t *testing.T) {
	require.Equal(t, "?[2Ja b  c??", OneLine(" \x1b[2Ja\nb\r\tc\xff\u202e ", 400))
	require.Equal(t, "", OneLine(" \n", 10))
	require.Equal(t, "éééé", OneLine("éééé", 4))
	require.Equal(t, "ééé…", OneLine("ééééé", 4))
	for _, s := range []string{strings.Repeat("x", 1<<20), strings.Repeat("é", 900), strings.Repeat("𝄞", 401)} {
		line := OneLine(s, 400)
		require.True(t, utf8.ValidString(line))
		require.Equal(t, 400, utf8.RuneCountInString(line))
		require.True(t, strings.HasSuffix(line, "…"))
		require.Equal(t, line, OneLine(line, 400))
	}
}
