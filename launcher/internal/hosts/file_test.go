package hosts

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

func TestReadFile(t *testing.T) {
	ab := []Host{{Name: "a", Slots: 4}, {Name: "b", Slots: 2}}
	for _, test := range []struct {
		name, text string
		want       []Host
	}{
		{"Open MPI", "# all\na slots=4\n\n  b slots=2 # the second\n", ab},
		{"blanks", "a  slots = 4\nb\tslots =2 \n", ab},
		{"count", "a count=4\nb slots= 2", ab},
		{"max", "a slots=4 max_slots=8\nb max-slots=2\nc slots_max=3 slots=3\n", []Host{{Name: "a", Slots: 4, MaxSlots: 8}, {Name: "b", MaxSlots: 2}, {Name: "c", Slots: 3, MaxSlots: 3}}},
		{"user", "u@a\nb username=v\nc user-name=w\n", []Host{{Name: "a", User: "u"}, {Name: "b", User: "v"}, {Name: "c", User: "w"}}},
		{"Hydra", "a:4\nb:2 binding=user:0+1\n", ab},
		{"Hydra user", "a:4 user=u\n", []Host{{Name: "a", Slots: 4, User: "u"}}},
		{"ours", "a port=2222 address=10.0.0.1\n", []Host{{Name: "a", Port: 2222, Address: "10.0.0.1"}}},
		{"bare", "a\nb\n", []Host{{Name: "a"}, {Name: "b"}}},
		{"PBS", "b\na\na\na\n", []Host{{Name: "b", Slots: 1}, {Name: "a", Slots: 3}}},
		{"Slurm", "node[1-2],gpu1\n", []Host{{Name: "node1"}, {Name: "node2"}, {Name: "gpu1"}}},
		{"srun -w", "node[08-10]-ib\n", []Host{{Name: "node08-ib"}, {Name: "node09-ib"}, {Name: "node10-ib"}}},
		{"range with slots", "node[1-2] slots=3\nnode2:1", []Host{{Name: "node1", Slots: 3}, {Name: "node2", Slots: 4}}},
		{"IPv6", "[::1]:4\n::2 slots=3\n", []Host{{Name: "::1", Slots: 4}, {Name: "::2", Slots: 3}}},
		{"Windows", "\ufeffa slots=4\r\n\r\nb:2\t\r\n", ab},
		{"no line end", "a:4\nb:2", ab},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := ReadFile("f", iotest.OneByteReader(strings.NewReader(test.text)))
			require.NoError(t, err)
			require.Equal(t, test.want, got)
		})
	}
}

func TestReadFileErrors(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"", "f:1: the file names no host"},
		{"# none\n\n \r\n", "f:3: the file names no host"},
		{"a\nb foo=1\n", `f:2: unknown key "foo"; expected slots, max_slots, user, port or address`},
		{"a slots\n", `f:1: expected KEY=VALUE after the host, found "slots"`},
		{"a 4\n", `f:1: expected KEY=VALUE after the host, found "4"`},
		{"a = 4\n", `f:1: expected KEY=VALUE after the host, found "=4"`},
		{"a slots=0\n", `f:1: slots: expected an integer from 1 to 65536, found "0"`},
		{"a slots=\n", `f:1: slots: expected an integer from 1 to 65536, found ""`},
		{"a count=-1\n", `f:1: slots: expected an integer from 1 to 65536, found "-1"`},
		{"a max-slots=x\n", `f:1: max_slots: expected an integer from 1 to 65536, found "x"`},
		{"a port=65536\n", `f:1: port: expected an integer from 1 to 65535, found "65536"`},
		{"a slots=2 slots=2\n", `f:1: expected one slots, found two`},
		{"a max_slots=2 slots-max=2\n", `f:1: expected one max_slots, found two`},
		{"a:2 slots=2\n", `f:1: expected one number of slots for a, found two`},
		{"u@a user=v\n", `f:1: expected one user for a, found two`},
		{"a user=-x\n", `f:1: expected a user's name, found "-x"`},
		{"a address=/\n", `f:1: expected an IP address or a name, found "/"`},
		{"a[1-2] address=x\n", `f:1: expected one host with an address, found 2`},
		{"a slots=4 max_slots=2\n", `f:1: expected at most max_slots=2 slots, found 4`},
		{"slots=4\n", `f:1: expected a host's name, found "slots=4"`},
		{"^a\n", `f:1: expected a host's name, found "^a"`},
		{"a[2-1]\n", `f:1: expected a range such as [1-4,7], found "2-1" in "a[2-1]"`},
		{"a:4,\n", `f:1: expected HOST[:SLOTS] separated by commas, found "a:4,"`},
		{"\x00\n", `f:1: expected a host's name, found "\x00"`},
		{"u@a\n\nv@a\n", `f:3: expected one user for a, found "u" and "v"`},
		{"a[1-60000]\nb[1-60000]\n", `f:2: expected at most 65536 hosts, found more in "b[1-60000]"`},
		{"a[1-60000]\na[1-60000]\n", `f:2: expected at most 65536 hosts, found more in "a[1-60000]"`},
		{"a\n" + strings.Repeat("a", maxLine+1), `f:2: expected a line of at most 1 MiB, found more`},
	} {
		got, err := ReadFile("f", strings.NewReader(test.text))
		require.EqualError(t, err, test.want)
		require.Nil(t, got)
	}
	_, err := ReadFile("f", iotest.ErrReader(&os.PathError{Op: "read", Path: "f", Err: errors.New("is a directory")}))
	require.EqualError(t, err, "f: is a directory")
	_, err = ReadFile("f", endless{})
	require.EqualError(t, err, "f: expected a hostfile of at most 16 MiB, found more")
}

// endless is a reader without an end, like /dev/zero.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func FuzzReadFile(f *testing.F) {
	for _, text := range []string{
		"a slots=4 max_slots=8\nu@b:2 binding=x\n", "a\na\nnode[1-3,2]\r\n", "\ufeff# none\n", "a slots = 4 user = u port=3 address=::1\n",
		"a max-slots=3\na\na:2\n", "a[1-3] slots=", "[::1]:3,b\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list, err := ReadFile("f", io.Reader(strings.NewReader(text)))
		if err != nil {
			if list != nil || strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "f:") {
				t.Fatalf("%q, %v", err, list)
			}
			return
		}
		checkHosts(t, list)
	})
}
