package hosts

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestExpand(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"a", "a"},
		{"node[01-03,07],gpu1", "node01 node02 node03 node07 gpu1"},
		{"r[1-2]n[1-3]", "r1n1 r1n2 r1n3 r2n1 r2n2 r2n3"},
		{"a[1-2][3-4]", "a13 a14 a23 a24"},
		{"a[1-3]-ib", "a1-ib a2-ib a3-ib"},
		{"r[1-2]n[01-02].cluster", "r1n01.cluster r1n02.cluster r2n01.cluster r2n02.cluster"},
		{"[1-3]", "1 2 3"},
		{"a[1,1,2]", "a1 a1 a2"},
		{"a[08-11]", "a08 a09 a10 a11"},
		{"a[009-11]", "a009 a010 a011"},
		{"a[1-010]", "a1 a2 a3 a4 a5 a6 a7 a8 a9 a10"},
		{"a[99-0101]", "a99 a100 a101"},
		{"a[000]", "a000"},
		{" a , b[1, 2] ", "a b1 b2"},
		{"::1,[fe80::1%eth0],10.0.0.1", "::1 fe80::1%eth0 10.0.0.1"},
		{"a[999999999999999998-999999999999999999]", "a999999999999999998 a999999999999999999"},
	} {
		names, err := Expand(test.text)
		require.NoError(t, err, test.text)
		require.Equal(t, test.want, strings.Join(names, " "), test.text)
	}
	names, err := Expand("n[1-256]c[1-256]")
	require.NoError(t, err)
	require.Len(t, names, Limit)
	require.Equal(t, "n256c256", names[Limit-1])
}

func TestExpandErrors(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"", `expected names of hosts separated by commas, found ""`},
		{"a,,b", `expected names of hosts separated by commas, found "a,,b"`},
		{"a,", `expected names of hosts separated by commas, found "a,"`},
		{"a[1-2", `expected "]" after "[", found "a[1-2"`},
		{"a]", `expected a host's name, found "a]"`},
		{"a[]", `expected a range such as [1-4,7], found "" in "a[]"`},
		{"a[3-1]", `expected a range such as [1-4,7], found "3-1" in "a[3-1]"`},
		{"a[1-]", `expected a range such as [1-4,7], found "1-" in "a[1-]"`},
		{"a[-1]", `expected a range such as [1-4,7], found "-1" in "a[-1]"`},
		{"a[1--2]", `expected a range such as [1-4,7], found "1--2" in "a[1--2]"`},
		{"a[+1-2]", `expected a range such as [1-4,7], found "+1-2" in "a[+1-2]"`},
		{"a[x-y]", `expected a range such as [1-4,7], found "x-y" in "a[x-y]"`},
		{"a[1[2]]", `expected a range such as [1-4,7], found "1[2" in "a[1[2]]"`},
		{"a[1-9999999999999999999]", `expected a range such as [1-4,7], found "1-9999999999999999999" in "a[1-9999999999999999999]"`},
		{"a[1-65537]", `expected at most 65536 hosts, found more in "a[1-65537]"`},
		{"a[0-9][0-9][0-9][0-9][0-9]", `expected at most 65536 hosts, found more in "a[0-9][0-9][0-9][0-9][0-9]"`},
		{"a[1-65536],b", `expected at most 65536 hosts, found more in "a[1-65536],b"`},
		{"a[1-65536],::1", `expected at most 65536 hosts, found more in "a[1-65536],::1"`},
		{"-oProxyCommand=x", `expected a host's name, found "-oProxyCommand=x"`},
		{"-[1-2]", `expected a host's name, found "-1"`},
		{"a b", `expected a host's name, found "a b"`},
		{"a\nb", `expected a host's name, found "a\nb"`},
		{"fe80::1% -x", `expected a host's name, found "fe80::1% -x"`},
		{"fe80::1%-x", `expected a host's name, found "fe80::1%-x"`},
		{"u@a", `expected a host's name, found "u@a"`},
		{"é", `expected a host's name, found "é"`},
		{"\xff", `expected a host's name, found "\xff"`},
		{strings.Repeat("a", 254), `expected a host's name, found "` + strings.Repeat("a", 40) + `…"`},
		{strings.Repeat("[1]", 254), `expected a host's name, found "` + strings.Repeat("1", 40) + `…"`},
		{"[1-65536]" + strings.Repeat("a", 1<<20), `expected a host's name, found "[1-65536]` + strings.Repeat("a", 31) + `…"`},
	} {
		names, err := Expand(test.text)
		require.EqualError(t, err, test.want)
		require.Nil(t, names)
	}
}

func FuzzExpand(f *testing.F) {
	for _, text := range []string{"node[01-03,07],gpu1", "r[1-2]n[1-4]-ib", "[::1],::1", "a[1-2", "a,,b", "[1-256][1-256]", "[0-9][0-9][0-9][0-9]x"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		names, err := Expand(text)
		if err != nil {
			if names != nil || strings.Contains(err.Error(), "\n") {
				t.Fatalf("%q, %v", err, names)
			}
			return
		}
		if len(names) == 0 || len(names) > Limit {
			t.Fatalf("%d names", len(names))
		}
		for _, n := range names {
			if err := checkName(n); err != nil {
				t.Fatal(err)
			}
		}
		again, err := Expand(strings.Join(names, ","))
		if err != nil || len(again) != len(names) {
			t.Fatalf("%d names are %d, %v", len(names), len(again), err)
		}
	})
}
