package profiles

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
)

// ranked returns a compressed profile of a rank whose program is at the address start: values in the
// functions main.work and main.main, and a label.
func ranked(t testing.TB, start uint64, value int64, edit func(*profile.Profile)) []byte {
	m := &profile.Mapping{ID: 1, Start: start, Limit: start + 0x1000, Offset: 0x10, File: "/bin/app", BuildID: "b", HasFunctions: true}
	work := &profile.Function{ID: 1, Name: "main.work", SystemName: "main.work", Filename: "main.go", StartLine: 3}
	run := &profile.Function{ID: 2, Name: "main.main", SystemName: "main.main", Filename: "main.go", StartLine: 9}
	leaf := &profile.Location{ID: 7, Mapping: m, Address: start + 0x100, Line: []profile.Line{{Function: work, Line: 4, Column: 2}}}
	root := &profile.Location{ID: 9, Mapping: m, Address: start + 0x200, Line: []profile.Line{{Function: run, Line: 10}}}
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}},
		PeriodType: &profile.ValueType{Type: "cpu", Unit: "nanoseconds"}, Period: 100, DefaultSampleType: "cpu",
		TimeNanos: 1000 + value, DurationNanos: 10 * value, DropFrames: "drop", KeepFrames: "keep",
		Mapping: []*profile.Mapping{m}, Function: []*profile.Function{work, run}, Location: []*profile.Location{leaf, root},
		Sample: []*profile.Sample{
			{Location: []*profile.Location{leaf, root}, Value: []int64{value, -value}, Label: map[string][]string{"own": {"a", "b"}, "rank": {"of the program"}}},
			{Location: []*profile.Location{root}, Value: []int64{0, 1}, NumLabel: map[string][]int64{"bytes": {64}}, NumUnit: map[string][]string{"bytes": {"bytes"}}},
		},
	}
	if edit != nil {
		edit(p)
	}
	var b bytes.Buffer
	require.NoError(t, p.Write(&b))
	return b.Bytes()
}

// TestMerge merges the profiles of three ranks, whose programs are at different addresses. The result
// must have the samples of all ranks with the ranks' labels in place of the program's own, and each
// function and location once.
func TestMerge(t *testing.T) {
	var out bytes.Buffer
	w := NewWriter(&out)
	for rank := range 3 {
		data := ranked(t, uint64(0x10000*(rank+1)), int64(rank+1), nil)
		require.NoError(t, w.Add(data, []Label{{"rank", strconv.Itoa(rank)}, {"host", "node"}}))
	}
	require.NoError(t, w.Close())
	p, err := profile.Parse(&out)
	require.NoError(t, err)
	require.NoError(t, p.CheckValid())
	require.Len(t, p.Sample, 6)
	require.Len(t, p.Function, 2)
	require.Len(t, p.Location, 2)
	require.Len(t, p.Mapping, 1)
	for rank := range 3 {
		s := p.Sample[2*rank]
		require.Equal(t, []int64{int64(rank + 1), -int64(rank + 1)}, s.Value)
		require.Equal(t, map[string][]string{"host": {"node"}, "own": {"a", "b"}}, s.Label)
		require.Equal(t, map[string][]int64{"rank": {int64(rank)}}, s.NumLabel)
		require.Equal(t, "main.work", s.Location[0].Line[0].Function.Name)
		require.Equal(t, "main.main", s.Location[1].Line[0].Function.Name)
		require.Equal(t, []uint64{0x10100, 0x10200}, []uint64{s.Location[0].Address, s.Location[1].Address})
		require.Equal(t, []int64{0, 1}, p.Sample[2*rank+1].Value)
		require.Equal(t, map[string][]int64{"rank": {int64(rank)}, "bytes": {64}}, p.Sample[2*rank+1].NumLabel)
	}
	line := p.Sample[0].Location[0].Line[0]
	require.Equal(t, []int64{4, 2, 3}, []int64{line.Line, line.Column, line.Function.StartLine})
	require.Equal(t, []int64{1001, 30, 100}, []int64{p.TimeNanos, p.DurationNanos, p.Period})
	require.Equal(t, []string{"cpu", "drop", "keep"}, []string{p.DefaultSampleType, p.DropFrames, p.KeepFrames})
	require.Equal(t, "cpu", p.PeriodType.Type)
	require.True(t, p.Mapping[0].HasFunctions)
	require.Equal(t, []string{"/bin/app", "b"}, []string{p.Mapping[0].File, p.Mapping[0].BuildID})
}

// TestSameAsMerge compares the result with that of Merge of package profile, for programs of different
// kinds: all samples must have the same functions, lines and values.
func TestSameAsMerge(t *testing.T) {
	other := func(p *profile.Profile) {
		p.Mapping[0].BuildID, p.Function[0].Name, p.Location[1].Line[0].Line = "other", "main.other", 77
	}
	var out bytes.Buffer
	w := NewWriter(&out)
	var list []*profile.Profile
	for i, data := range [][]byte{ranked(t, 0x5000, 1, nil), ranked(t, 0x5000, 2, other), ranked(t, 0x9000, 3, nil)} {
		require.NoError(t, w.Add(data, nil), i)
		p, err := profile.ParseData(data)
		require.NoError(t, err)
		list = append(list, p)
	}
	require.NoError(t, w.Close())
	got, err := profile.Parse(&out)
	require.NoError(t, err)
	want, err := profile.Merge(list)
	require.NoError(t, err)
	require.Equal(t, shown(want), shown(got))
	require.Len(t, got.Location, len(want.Location))
	require.Len(t, got.Function, len(want.Function))
	require.Len(t, got.Mapping, len(want.Mapping))
}

// shown returns the sum of the values of a profile by stack and labels.
func shown(p *profile.Profile) map[string][]int64 {
	sums := make(map[string][]int64)
	for _, s := range p.Sample {
		key := ""
		for _, l := range s.Location {
			for _, at := range l.Line {
				key += at.Function.Name + ":" + strconv.FormatInt(at.Line, 10) + " " + l.Mapping.BuildID + "\n"
			}
		}
		for _, k := range slices.Sorted(maps.Keys(s.Label)) {
			key += k + "="
			for _, v := range s.Label[k] {
				key += v + ","
			}
		}
		if sums[key] == nil {
			sums[key] = make([]int64, len(s.Value))
		}
		for i, v := range s.Value {
			sums[key][i] += v
		}
	}
	return sums
}

// TestInvalid adds bytes that are no profile, and a profile of another kind, between two ranks. Add must
// refuse them, and the profiles of the two ranks must stay.
func TestInvalid(t *testing.T) {
	good := ranked(t, 0x1000, 1, nil)
	zipped := func(raw []byte) []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, err := z.Write(raw)
		require.NoError(t, errors.Join(err, z.Close()))
		return b.Bytes()
	}
	var out bytes.Buffer
	w := NewWriter(&out)
	require.NoError(t, w.Add(good, []Label{{"rank", "0"}}))
	for name, bad := range map[string][]byte{
		"empty": nil, "text": []byte("not a profile"), "cut": good[:len(good)/2], "empty archive": zipped(nil), "no profile inside": zipped([]byte("not a profile")),
		"too long when unpacked": zipped(appendMessage(unzipped(t, good), fieldString, make([]byte, maxRaw))),
		"other kind":             ranked(t, 0x1000, 1, func(p *profile.Profile) { p.SampleType[1].Type = "delay" }),
	} {
		err := w.Add(bad, []Label{{"rank", "1"}})
		require.ErrorIs(t, err, ErrInvalid, name)
		if name == "too long when unpacked" {
			require.ErrorContains(t, err, "more than 33554432 bytes")
		}
	}
	require.NoError(t, w.Add(good, []Label{{"rank", "2"}}))
	require.NoError(t, w.Close())
	p, err := profile.Parse(&out)
	require.NoError(t, err)
	var ranks []int64
	for _, s := range p.Sample {
		ranks = append(ranks, s.NumLabel["rank"]...)
	}
	require.Equal(t, []int64{0, 0, 2, 2}, ranks)
}

// unzipped returns a profile without its compression.
func unzipped(t testing.TB, data []byte) []byte {
	z, err := gzip.NewReader(bytes.NewReader(data))
	require.NoError(t, err)
	raw, err := io.ReadAll(z)
	require.NoError(t, err)
	return raw
}

// full is an io.Writer on a disk with room for so many bytes.
type full int

var errFull = errors.New("no space left on device")

func (f *full) Write(b []byte) (int, error) {
	if len(b) > int(*f) {
		return 0, errFull
	}
	*f -= full(len(b))
	return len(b), nil
}

// TestFull: an error of the io.Writer must reach the caller, at the latest by Close, and must not look
// like an error of a rank.
func TestFull(t *testing.T) {
	for _, room := range []full{0, 10, 100} {
		w := NewWriter(&room)
		err := errors.Join(w.Add(ranked(t, 0, 1, nil), nil), w.Close())
		require.ErrorIs(t, err, errFull)
		require.NotErrorIs(t, err, ErrInvalid)
	}
}

// FuzzAdd adds arbitrary bytes as the profile of a rank. If Add accepts them, package profile must accept
// the result, with the same sums.
func FuzzAdd(f *testing.F) {
	f.Add(unzipped(f, ranked(f, 0x1000, 1, nil)))
	f.Add([]byte("x"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var in, out bytes.Buffer
		z := gzip.NewWriter(&in)
		_, err := z.Write(raw)
		require.NoError(t, errors.Join(err, z.Close()))
		w := NewWriter(&out)
		added := w.Add(in.Bytes(), []Label{{"rank", "1"}})
		if added != nil {
			require.ErrorIs(t, added, ErrInvalid)
			return
		}
		require.NoError(t, w.Close())
		got, err := profile.Parse(&out)
		require.NoError(t, err)
		want, err := profile.ParseUncompressed(raw)
		require.NoError(t, err)
		require.Len(t, got.Sample, len(want.Sample))
		for i, s := range got.Sample {
			require.Equal(t, []int64{1}, s.NumLabel["rank"])
			require.Equal(t, want.Sample[i].Value, s.Value)
			require.Len(t, s.Location, len(want.Sample[i].Location))
		}
	})
}
