package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/internal/testprog"
)

// bin is the directory with the built gorun and this program.
var bin string

func TestMain(m *testing.M) {
	os.Exit(testprog.Main(m.Run, "weft-parquet-", &bin, []string{"../..", "./cmd/gorun"}, []string{".", "."}))
}

// gorun runs the program with these arguments on some ranks.
func gorun(t *testing.T, ranks int, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	all := append([]string{"-timeout", "1m", "-np", strconv.Itoa(ranks), filepath.Join(bin, "parquet")}, args...)
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "gorun"), all...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		require.True(t, errors.As(err, &exit), "gorun %q: %v", all, err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func TestUsageIsPrintedOnce(t *testing.T) {
	code, out, errs := gorun(t, 3, "-h")
	require.Zero(t, code, errs)
	require.Equal(t, 1, strings.Count(out, "Usage of "), out)
	for _, wrong := range [][]string{{"-nosuch"}, {"unexpected"}, {"-rows", "-1"}, {"-group", "0"}, {"-rows", "many"}} {
		code, out, errs := gorun(t, 3, wrong...)
		require.Equal(t, 2, code, errs)
		require.Empty(t, out)
		require.Equal(t, 1, strings.Count(errs, "; -h lists the flags\n"), errs)
	}
}

func TestSample(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sample.parquet")
	for _, test := range []struct {
		rows, group int
		want        string // a regular expression
	}{
		{20000, 1500, `(?m)^id +INT +20000 +0 +0 +-1000 +18999 +8999\.5 +5773\.6\d+$(.|\n)*^20000 rows in 14 row groups\n`},
		{1, 10, `(?m)^price +DECIMAL +1 +0 +0 +(\S+) +(\S+) +(\S+) +-\n(.|\n)*^1 rows in 1 row groups\n`},
		{7, 2, `(?m)^day +DATE +7 +0 +0 +2023-11-14 +2023-11-14 +2023-11-14 +0 s\n(.|\n)*^7 rows in 4 row groups\n`},
	} {
		for _, ranks := range []int{1, 2, 3} {
			code, out, errs := gorun(t, ranks, "-file", file, "-make", "-check", "-rows", strconv.Itoa(test.rows), "-group", strconv.Itoa(test.group))
			require.Zero(t, code, errs)
			require.Regexp(t, test.want, out)
			require.Contains(t, out, fmt.Sprintf("\n%d ranks: equal to the serial pass\n", ranks))
		}
	}
	code, out, errs := gorun(t, 3, "-file", file, "-make", "-rows", "0")
	require.Equal(t, 1, code, errs)
	require.Empty(t, out)
	require.Contains(t, errs, "sample.parquet: the file has no row groups")
	code, _, errs = gorun(t, 3, "-file", filepath.Join(file, "below"), "-make")
	require.Equal(t, 1, code, errs)
	require.Contains(t, errs, "not a directory")
}

// statisticsOf runs the program's statistics on goroutines, and returns the output of rank 0 and
// all errors. The file's name may differ between ranks.
func statisticsOf(t *testing.T, ranks int, name func(rank int) string) (string, []error) {
	var out strings.Builder
	errs := make([]error, ranks)
	commtest.Run(t, ranks, func(c *comm.Comm) error {
		errs[c.Rank()] = statistics(c, name(c.Rank()), true, &out)
		return nil
	})
	return out.String(), errs
}

// TestErrors checks that every rank returns an error with the cause if a file is bad on one rank,
// or on all.
func TestErrors(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good")
	require.NoError(t, writeSample(good, 2000, 300))
	bytesOf := func(name string) []byte {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		return b
	}
	write := func(name string, b []byte) string {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), b, 0o600))
		return filepath.Join(dir, name)
	}
	whole := bytesOf(good)
	damaged := slices.Clone(whole)
	damaged[len(whole)/2] ^= 0x55
	tail := append([]byte("PAR1"), whole[len(whole)-12:]...)
	empty, other := filepath.Join(dir, "empty"), filepath.Join(dir, "other")
	require.NoError(t, writeSample(empty, 0, 1))
	require.NoError(t, writeSample(other, 2001, 300))
	for _, test := range []struct{ name, file, want string }{
		{"missing", filepath.Join(dir, "none"), "no such file"},
		{"directory", dir, "is a directory"},
		{"no bytes", write("nothing", nil), "magic header"},
		{"text", write("text", []byte("a,b\n1,2\n")), "magic header"},
		{"truncated", write("truncated", whole[:len(whole)*2/3]), "magic footer"},
		{"footer only", write("footer", tail), "footer"},
		{"no row groups", empty, "the file has no row groups"},
		{"other file", other, "is not the file that rank 0 has"},
		{"damaged", write("damaged", damaged), "row group 3: column "},
	} {
		for _, ranks := range []int{1, 2, 3} {
			for _, bad := range []int{0, ranks - 1, -1} { // -1: all ranks
				_, errs := statisticsOf(t, ranks, func(rank int) string {
					if bad < 0 || rank == bad {
						return test.file
					}
					return good
				})
				for rank, err := range errs {
					switch {
					case test.name == "other file" && (bad < 0 || ranks == 1): // all ranks have the same file
						require.NoError(t, err)
					case test.name == "other file": // rank 0 or the last rank has it
						require.ErrorContains(t, err, test.want)
					case test.name == "damaged" && bad >= 0 && ranks > 1: // a good rank may read the damaged row group
					default:
						require.ErrorContains(t, err, test.want, "%s, rank %d of %d", test.name, rank, ranks)
					}
				}
			}
		}
	}
	for _, ranks := range []int{1, 2, 3} {
		code, out, errs := gorun(t, ranks, "-file", filepath.Join(dir, "damaged"))
		require.Equal(t, 1, code, errs)
		require.Empty(t, out)
		require.Contains(t, errs, "row group 3: column ")
	}
}

// TestDamage changes single bytes of a small file, every third one. The program does not panic. It
// reports most changes as errors, but not all: the checksums of the format cover pages, and neither
// their headers nor the footer.
func TestDamage(t *testing.T) {
	name := filepath.Join(t.TempDir(), "damaged")
	require.NoError(t, writeSample(name, 40, 25))
	whole, err := os.ReadFile(name)
	require.NoError(t, err)
	changed, found := 0, 0
	for i := 0; i < len(whole); i += 3 {
		b := slices.Clone(whole)
		b[i] ^= byte(1 + 37*i%255)
		require.NoError(t, os.WriteFile(name, b, 0o600))
		changed++
		f, err := openTable(name)
		if err == nil {
			s := newSummary(f.columns)
			for g := 0; g < len(f.groups) && err == nil; g++ {
				err = f.read(g, s)
			}
			if err == nil {
				require.NoError(t, report(io.Discard, f, s))
			}
			f.close()
		}
		if err != nil {
			found++
		}
	}
	require.Greater(t, found, changed/2)
}

// TestMoments compares the statistics of some columns with those that this test computes from the
// rows.
func TestMoments(t *testing.T) {
	const rows = 3000
	name := filepath.Join(t.TempDir(), "sample")
	require.NoError(t, writeSample(name, rows, 170))
	var visitors, temperatures []float64
	low, high, nulls := "", "", int64(0)
	for i := range rows {
		r := sample(i)
		visitors = append(visitors, float64(r.Visitors))
		if r.Temperature != nil {
			temperatures = append(temperatures, *r.Temperature)
		}
		if r.City == nil {
			nulls++
		} else if high = max(high, *r.City); i == 0 || *r.City < low {
			low = *r.City
		}
	}
	for _, ranks := range []int{1, 2, 3, 5} {
		commtest.Run(t, ranks, func(c *comm.Comm) error {
			f, err := openTable(name)
			if err != nil {
				return err
			}
			defer f.close()
			s, err := readShare(c, f)
			if err != nil {
				return err
			}
			if s, err = s.reduce(c); err != nil || c.Rank() != 0 {
				return err
			}
			for col, numbers := range map[string][]float64{"visitors": visitors, "temperature": temperatures} {
				at := slices.IndexFunc(f.columns, func(c column) bool { return c.name == col })
				st := s.stats[at]
				sum, squares := 0.0, 0.0
				for _, x := range numbers {
					sum += x
				}
				mean := sum / float64(len(numbers))
				for _, x := range numbers {
					squares += (x - mean) * (x - mean)
				}
				require.Equal(t, []int64{int64(len(numbers)), int64(rows - len(numbers))}, []int64{st.Finite, st.Nulls})
				require.InEpsilon(t, mean, st.Mean, 1e-12)
				require.InEpsilon(t, math.Sqrt(squares/float64(len(numbers)-1)), st.deviation(), 1e-12)
			}
			at := slices.IndexFunc(f.columns, func(c column) bool { return c.name == "city" })
			require.Equal(t, []string{low, high}, []string{string(s.bounds[at].Min), string(s.bounds[at].Max)})
			require.Equal(t, stats{Values: rows - nulls, Nulls: nulls}, s.stats[at])
			return nil
		})
	}
}

// TestMerge merges parts with a large mean and a small deviation, and empty parts.
func TestMerge(t *testing.T) {
	var total, none stats
	total.merge(&none)
	require.Equal(t, none, total)
	for i := range 1000 {
		total.merge(&stats{Values: 2, Finite: 2, Mean: 1e9 + float64(i%2), M2: 0.5})
		total.merge(&none)
	}
	require.InEpsilon(t, 1e9+0.5, total.Mean, 1e-15)
	require.InEpsilon(t, math.Sqrt((500+2000*0.25)/1999), total.deviation(), 1e-7)
	before := total
	none.merge(&total)
	require.Equal(t, before, none)
}

// TestTypes reads values at the ends of their types, in row groups of one or two rows.
func TestTypes(t *testing.T) {
	type row struct {
		Float   float64  `parquet:"float"`
		Zero    float32  `parquet:"zero"`
		Big     uint64   `parquet:"big"`
		Byte    uint8    `parquet:"byte"`
		Least   int64    `parquet:"least"`
		Decimal int32    `parquet:"decimal,decimal(3:9)"`
		Milli   int64    `parquet:"milli,timestamp"`
		Nano    int64    `parquet:"nano,timestamp(nanosecond)"`
		ID      [16]byte `parquet:"id,uuid"`
		Bytes   []byte   `parquet:"bytes"`
		Wide    [16]byte `parquet:"wide,decimal(2:38)"`
		Nothing *int32   `parquet:"nothing,optional"`
	}
	nan, inf := math.NaN(), math.Inf(1)
	negative := float32(math.Copysign(0, -1))
	rows := []row{
		{Float: nan, Zero: 0, Big: math.MaxUint64, Byte: 200, Least: math.MinInt64, Decimal: -1500, Milli: -1, Nano: 1, ID: [16]byte{255}, Bytes: []byte{0, 255}},
		{Float: inf, Zero: negative, Big: 1, Byte: 255, Least: -1, Decimal: 2, Milli: 253402300799999, Nano: 1 << 60, Bytes: []byte(strings.Repeat("é", 30))},
		{Float: -1, Zero: 0, Big: 3, Byte: 7, Decimal: 5, Nano: 3, Bytes: []byte("b")},
	}
	for _, group := range []int64{1, 2, 5} {
		name := filepath.Join(t.TempDir(), "types")
		require.NoError(t, parquet.WriteFile(name, rows, parquet.MaxRowsPerRowGroup(group)))
		for _, ranks := range []int{1, 2, 3, 4} {
			out, errs := statisticsOf(t, ranks, func(int) string { return name })
			require.NoError(t, errors.Join(errs...))
			for line := range strings.Lines(`float DOUBLE 3 0 2 -1 +Inf -1 -
big INT 3 0 0 1 18446744073709551615 6.1489147e+18 1.0650233e+19
byte INT 3 0 0 7 255 154 130.24208
least INT 3 0 0 -9223372036854775808 0 -3.0744573e+18 5.3251163e+18
decimal DECIMAL 3 0 0 -1.500 0.005 -0.49766667 0.86804743
milli TIMESTAMP 3 0 0 1969-12-31T23:59:59.999 9999-12-31T23:59:59.999 4646-09-01T07:59:59.999 1.46302e+11 s
nano TIMESTAMP 3 0 0 1970-01-01T00:00:00.000000001 2006-07-14T23:58:24.606846976 1982-03-06T23:59:28.202 6.6564e+08 s
id UUID 3 0 0 00000000000000000000000000000000 ff000000000000000000000000000000 - -
wide DECIMAL 3 0 0 - - - -
nothing INT 0 3 0 - - - -
`) {
				require.Contains(t, strings.Join(strings.Fields(out), " "), strings.TrimSpace(line), out)
			}
			require.Regexp(t, `(?m)^zero +FLOAT +3 +0 +0 +-?0 +-?0 +0 +0$`, out) // 0 and -0 are equal
			require.Regexp(t, `(?m)^bytes +BYTE_ARRAY +3 +0 +0 +"\\x00\\xff" +"é{24}"… +- +-$`, out)
		}
	}
}
