package wire

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// parseSpawn gives the lines of text to a parser, and returns what it returns for the last of them.
// rest holds the lines after the request.
func parseSpawn(text string) (s *Spawn, done bool, rest string, err error) {
	var p SpawnParser
	for text != "" {
		line, behind, _ := strings.Cut(text, "\n")
		text = behind
		if p.Begin([]byte(line)) {
			continue
		}
		if !p.Within() {
			return nil, false, line + "\n" + text, nil
		}
		if s, done, err = p.Line([]byte(line)); done {
			return s, done, text, err
		}
	}
	return nil, false, "", nil
}

func TestSpawnRoundTrip(t *testing.T) {
	want := Spawn{
		Commands: []SpawnCommand{
			{Exec: "./worker", Args: []string{"-v", "two words", "a=b", ""}, Procs: 2, Info: []PMIField{{"wdir", "/a b"}, {"host", "x,y"}, {"host", "z"}}},
			{Exec: "other", Procs: 1},
		},
		Preput: []PMIField{{"PORT", "tag#0$"}},
	}
	text, err := want.Append([]byte("x"))
	require.NoError(t, err)
	got, done, rest, err := parseSpawn(string(text[1:]) + "cmd=barrier_in\n")
	require.NoError(t, err)
	require.True(t, done)
	require.Equal(t, &want, got)
	require.Equal(t, "cmd=barrier_in\n", rest)
	require.Equal(t, 3, got.Procs())
}

// mpichSpawn is a request as MPICH 4.0.2 writes it: the arguments come before argcnt.
const mpichSpawn = "mcmd=spawn\nnprocs=2\nexecname=./c\ntotspawns=1\nspawnssofar=1\narg1=a b\nargcnt=1\n" +
	"preput_num=1\npreput_key_0=PARENT_ROOT_PORT_NAME\npreput_val_0=tag#0$connentry#0200$\ninfo_num=1\ninfo_key_0=wdir\ninfo_val_0=/tmp\nendcmd\n"

func TestSpawnOfMPICH(t *testing.T) {
	s, done, _, err := parseSpawn(mpichSpawn)
	require.NoError(t, err)
	require.True(t, done)
	require.Equal(t, []SpawnCommand{{Exec: "./c", Args: []string{"a b"}, Procs: 2, Info: []PMIField{{"wdir", "/tmp"}}}}, s.Commands)
	require.Equal(t, []PMIField{{"PARENT_ROOT_PORT_NAME", "tag#0$connentry#0200$"}}, s.Preput)
	// Later versions call the number of info keys infonum.
	s, _, _, err = parseSpawn(strings.Replace(mpichSpawn, "info_num", "infonum", 1))
	require.NoError(t, err)
	require.Len(t, s.Commands[0].Info, 1)
}

// TestSpawnMalformed: a malformed request must end with one error at its last line, and the parser
// must be ready for the next request.
func TestSpawnMalformed(t *testing.T) {
	block := func(lines ...string) string { return "mcmd=spawn\n" + strings.Join(lines, "\n") + "\nendcmd\n" }
	good := []string{"nprocs=1", "execname=x", "argcnt=0", "totspawns=1", "spawnssofar=1"}
	with := func(lines ...string) string { return block(append(append([]string{}, good...), lines...)...) }
	for name, text := range map[string]string{
		"nothing":           block(),
		"no program":        block("nprocs=1", "argcnt=0", "totspawns=1", "spawnssofar=1"),
		"no count":          block("execname=x", "argcnt=0", "totspawns=1", "spawnssofar=1"),
		"no total":          block("nprocs=1", "execname=x", "argcnt=0", "spawnssofar=1"),
		"wrong number":      with("spawnssofar=2", "totspawns=2"),
		"more than all":     with("spawnssofar=1", "totspawns=0"),
		"missing argument":  with("argcnt=2", "arg1=a"),
		"missing info":      with("info_num=1", "info_key_0=a"),
		"missing pair":      with("preput_num=1", "preput_val_0=a"),
		"negative":          with("nprocs=-1"),
		"too many":          with("nprocs=999999999999"),
		"many args":         with("argcnt=1000000000"),
		"no number":         with("argcnt=many"),
		"no key":            with("what"),
		"zero byte":         with("arg1=a\x00b"),
		"second wrong":      with("totspawns=2") + block("nprocs=1", "execname=x", "totspawns=2", "spawnssofar=3"),
		"first wrong":       with("totspawns=2", "nprocs=x") + with("totspawns=2", "spawnssofar=2"),
		"too long":          with("totspawns=1", strings.Repeat("a="+strings.Repeat("x", 1000)+"\n", 1100)+"b=c"),
		"no program second": with("totspawns=2") + block("nprocs=1", "totspawns=2", "spawnssofar=2"),
	} {
		s, done, rest, err := parseSpawn(text + "cmd=x\n")
		require.True(t, done, name)
		require.ErrorIs(t, err, ErrSpawn, name)
		require.Nil(t, s, name)
		require.Equal(t, "cmd=x\n", rest, name)
	}
}

func TestSpawnAppendErrors(t *testing.T) {
	for name, s := range map[string]Spawn{
		"nothing":     {},
		"no program":  {Commands: []SpawnCommand{{Procs: 1}}},
		"negative":    {Commands: []SpawnCommand{{Exec: "x", Procs: -1}}},
		"newline":     {Commands: []SpawnCommand{{Exec: "x", Procs: 1, Args: []string{"a\nb"}}}},
		"zero byte":   {Commands: []SpawnCommand{{Exec: "x\x00", Procs: 1}}},
		"long":        {Commands: []SpawnCommand{{Exec: "x", Procs: 1, Args: []string{strings.Repeat("a", PMIMaxLine)}}}},
		"many":        {Commands: []SpawnCommand{{Exec: "x", Procs: SpawnMaxProcs}, {Exec: "x", Procs: 1}}},
		"many bytes":  {Commands: []SpawnCommand{{Exec: "x", Procs: 1, Args: make([]string, 200000)}}},
		"info":        {Commands: []SpawnCommand{{Exec: "x", Procs: 1, Info: []PMIField{{"a", "b\n"}}}}},
		"preput long": {Commands: []SpawnCommand{{Exec: "x", Procs: 1}}, Preput: []PMIField{{"a", strings.Repeat("b", PMIMaxLine)}}},
	} {
		dst, err := s.Append([]byte("before"))
		require.ErrorIs(t, err, ErrSpawn, name)
		require.Equal(t, "before", string(dst), name)
	}
}

// FuzzSpawn: the parser must take any lines without a panic, and what it accepts must survive
// Append and another parse.
func FuzzSpawn(f *testing.F) {
	f.Add([]byte(mpichSpawn))
	s := Spawn{Commands: []SpawnCommand{{Exec: "a", Procs: 1}, {Exec: "b", Args: []string{"c"}, Procs: 2, Info: []PMIField{{"k", "v"}}}}}
	text, err := s.Append(nil)
	require.NoError(f, err)
	f.Add(text)
	f.Add([]byte("mcmd=spawn\ntotspawns=2\nendcmd\nmcmd=spawn\nendcmd\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var p SpawnParser
		for line := range bytes.SplitSeq(data, []byte("\n")) {
			if p.Begin(line) || !p.Within() {
				continue
			}
			s, done, err := p.Line(line)
			if !done || err != nil {
				require.True(t, s == nil, "a request that is not complete or not valid")
				continue
			}
			text, err := s.Append(nil)
			if err != nil { // a line that is too long for a writer
				continue
			}
			again, done, _, err := parseSpawn(string(text))
			require.NoError(t, err)
			require.True(t, done)
			require.Equal(t, s, again)
		}
	})
}
