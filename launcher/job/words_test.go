package job

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWords(t *testing.T) {
	for _, test := range []struct {
		text string
		want []string
	}{
		{"", nil},
		{" \t\n", nil},
		{"ssh", []string{"ssh"}},
		{" ssh  -p\t22 ", []string{"ssh", "-p", "22"}},
		{`ssh -i '~/my key' -o "User me"`, []string{"ssh", "-i", "~/my key", "-o", "User me"}},
		{`a'b'"c"d`, []string{"abcd"}},
		{`'' ""`, []string{"", ""}},
		{`a\ b \' \\ \n`, []string{"a b", "'", `\`, "n"}},
		{`"a\"b" "\\" "\$\` + "`" + `" "\n"`, []string{`a"b`, `\`, "$`", `\n`}},
		{`'a\' "'"`, []string{`a\`, "'"}},
		{"$HOME ~ * `x`", []string{"$HOME", "~", "*", "`x`"}},
		{"é 'ü ö'", []string{"é", "ü ö"}},
	} {
		got, err := Words(test.text)
		require.NoError(t, err, test.text)
		require.Equal(t, test.want, got, test.text)
	}
	for _, text := range []string{"'", `"`, `a 'b`, `a "b\"`, `a\`, `"\`} {
		got, err := Words(text)
		require.EqualError(t, err, "expected a command line whose quotes are closed", text)
		require.Nil(t, got)
	}
}

// FuzzWords: Words must split an arbitrary text into words or return an error. If joinWords joins
// the words, Words must split the result into the same words.
func FuzzWords(f *testing.F) {
	for _, text := range []string{`ssh -i 'my key' "a\"b" c\ d`, "'", `\`, "a\x00b", "''", "a\nb"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		words, err := Words(text)
		if err != nil && words != nil {
			t.Fatalf("%v, %q", err, words)
		}
		for _, list := range [][]string{words, strings.Split(text, "\x00")} {
			again, err := Words(joinWords(list))
			if err != nil || !slices.Equal(list, again) {
				t.Fatalf("%q is %q, %v", list, again, err)
			}
		}
	})
}
