package hosts

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMerge(t *testing.T) {
	for _, test := range []struct{ list, want []Host }{
		{nil, nil},
		{[]Host{{Name: "a"}}, []Host{{Name: "a"}}},
		{[]Host{{Name: "a"}, {Name: "b", Slots: 2}}, []Host{{Name: "a"}, {Name: "b", Slots: 2}}},
		{[]Host{{Name: "a"}, {Name: "b"}, {Name: "A"}}, []Host{{Name: "a", Slots: 2}, {Name: "b", Slots: 1}}},
		{[]Host{{Name: "a", Slots: 2}, {Name: "b"}, {Name: "a", Slots: 3}}, []Host{{Name: "a", Slots: 5}, {Name: "b"}}},
		{[]Host{{Name: "a", Slots: 2}, {Name: "a"}, {Name: "b"}}, []Host{{Name: "a", Slots: 3}, {Name: "b"}}},
		{[]Host{{Name: "::1"}, {Name: "0:0::1"}}, []Host{{Name: "::1", Slots: 2}}},
		// How to reach a host: the first counts, and what it leaves open the next.
		{[]Host{{Name: "a", User: "u"}, {Name: "a", User: "v", Port: 3}, {Name: "a", Port: 4, Address: "x"}}, []Host{{Name: "a", User: "u", Port: 3, Address: "x", Slots: 3}}},
		// A mention without a limit raises it by its slots.
		{[]Host{{Name: "a", MaxSlots: 8}}, []Host{{Name: "a", MaxSlots: 8}}},
		{[]Host{{Name: "a", Slots: 2, MaxSlots: 4}, {Name: "a", Slots: 3, MaxSlots: 3}}, []Host{{Name: "a", Slots: 5, MaxSlots: 7}}},
		{[]Host{{Name: "a", Slots: 2, MaxSlots: 2}, {Name: "a"}, {Name: "a", Slots: 3}}, []Host{{Name: "a", Slots: 6, MaxSlots: 6}}},
		{[]Host{{Name: "a", Slots: Limit}, {Name: "a", Slots: Limit, MaxSlots: Limit}}, []Host{{Name: "a", Slots: Limit, MaxSlots: Limit}}},
	} {
		got := Merge(test.list)
		require.Equal(t, test.want, got)
		require.Equal(t, got, Merge(got))
	}
	var many []Host
	for i := range Limit + 1 {
		many = append(many, Host{Name: fmt.Sprint(i)})
	}
	require.Len(t, Merge(many), Limit)
}

func TestSetErrors(t *testing.T) {
	for _, test := range []struct {
		a, b Host
		want string
	}{
		{Host{User: "u"}, Host{User: "v"}, `expected one user for a, found "u" and "v"`},
		{Host{Port: 1}, Host{Port: 2}, `expected one port for a, found 1 and 2`},
		{Host{Address: "x"}, Host{Address: "y"}, `expected one address for a, found "x" and "y"`},
	} {
		var s Set
		test.a.Name, test.b.Name = "a", "a"
		require.NoError(t, s.Add(test.a))
		require.EqualError(t, s.Add(test.b), test.want)
	}
	var s Set
	for i := range Limit {
		require.NoError(t, s.Add(Host{Name: fmt.Sprint(i)}))
	}
	require.NoError(t, s.Add(Host{Name: "1"}))
	require.EqualError(t, s.Add(Host{Name: "x"}), "expected at most 65536 hosts, found more")
}

func TestRestrict(t *testing.T) {
	all := []Host{{Name: "a", Slots: 4, MaxSlots: 8, User: "u"}, {Name: "b", Port: 2}, {Name: "c", Slots: 1}}
	for _, test := range []struct{ some, want []Host }{
		{nil, nil},
		{[]Host{{Name: "C"}, {Name: "a"}}, []Host{{Name: "c", Slots: 1}, all[0]}},
		{[]Host{{Name: "a", Slots: 8}}, []Host{{Name: "a", Slots: 8, MaxSlots: 8, User: "u"}}},
		{[]Host{{Name: "b", Slots: 7, User: "v"}}, []Host{{Name: "b", Slots: 7, User: "v", Port: 2}}},
	} {
		got, err := Restrict(all, test.some, "f")
		require.NoError(t, err)
		require.Equal(t, test.want, got)
	}
	_, err := Restrict(all, []Host{{Name: "d"}}, "hosts.txt")
	require.EqualError(t, err, `expected a host of hosts.txt, found "d"`)
	_, err = Restrict(all, []Host{{Name: "a", Slots: 9}}, "hosts.txt")
	require.EqualError(t, err, `expected at most 8 slots of a, as hosts.txt says, found 9`)
}

func TestParseList(t *testing.T) {
	for _, test := range []struct {
		text string
		want []Host
	}{
		{"a", []Host{{Name: "a"}}},
		{"a:4,b,node[1-3]:2,user@c", []Host{{Name: "a", Slots: 4}, {Name: "b"}, {Name: "node1", Slots: 2}, {Name: "node2", Slots: 2}, {Name: "node3", Slots: 2}, {Name: "c", User: "user"}}},
		{"a,b,a", []Host{{Name: "a", Slots: 2}, {Name: "b", Slots: 1}}},
		{"a:2, a:3", []Host{{Name: "a", Slots: 5}}},
		{"a[1-2],a[2-3]", []Host{{Name: "a1", Slots: 1}, {Name: "a2", Slots: 2}, {Name: "a3", Slots: 1}}},
		{"[::1]:4", []Host{{Name: "::1", Slots: 4}}},
		{"::1,[fe80::1%eth0],u@[::2]:3,::1:4", []Host{{Name: "::1"}, {Name: "fe80::1%eth0"}, {Name: "::2", User: "u", Slots: 3}, {Name: "::1:4"}}},
		{"10.0.0.1:65536", []Host{{Name: "10.0.0.1", Slots: 65536}}},
		{`DOM\u@a,u@a.b.c:1`, []Host{{Name: "a", User: `DOM\u`}, {Name: "a.b.c", User: "u", Slots: 1}}},
		{"[1-2]:3", []Host{{Name: "1", Slots: 3}, {Name: "2", Slots: 3}}},
	} {
		got, err := ParseList(test.text)
		require.NoError(t, err, test.text)
		require.Equal(t, test.want, got, test.text)
	}
}

func TestParseListErrors(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"", `expected HOST[:SLOTS] separated by commas, found ""`},
		{",", `expected HOST[:SLOTS] separated by commas, found ","`},
		{"a,", `expected HOST[:SLOTS] separated by commas, found "a,"`},
		{"a:", `expected HOST[:SLOTS], found "a:"`},
		{":4", `expected HOST[:SLOTS], found ":4"`},
		{"u@", `expected HOST[:SLOTS], found "u@"`},
		{"@a", `expected a user's name, found ""`},
		{"-l@a", `expected a user's name, found "-l"`},
		{"u@v@a", `expected a user's name, found "u@v"`},
		{"a:0", `expected HOST[:SLOTS] with from 1 to 65536 slots, found "a:0"`},
		{"a:65537", `expected HOST[:SLOTS] with from 1 to 65536 slots, found "a:65537"`},
		{"a:+4", `expected HOST[:SLOTS] with from 1 to 65536 slots, found "a:+4"`},
		{"a:x", `expected HOST[:SLOTS] with from 1 to 65536 slots, found "a:x"`},
		{"a:1:2", `expected a host's name, found "a:1"`},
		{"[::1", `expected "]" behind "[", found "[::1"`},
		{"[::1]x", `expected a range such as [1-4,7], found "::1" in "[::1]x"`},
		{"-x", `expected a host's name, found "-x"`},
		{"u@a,v@a", `expected one user for a, found "u" and "v"`},
		{"a[1-65536]:2,b", `expected at most 65536 hosts, found more in "a[1-65536]:2,b"`},
	} {
		got, err := ParseList(test.text)
		require.EqualError(t, err, test.want)
		require.Nil(t, got)
	}
}

func TestIsLocal(t *testing.T) {
	own, err := os.Hostname()
	require.NoError(t, err)
	short, _, _ := strings.Cut(own, ".")
	local := []string{"localhost", "LOCALHOST", "localhost.", "localhost.localdomain", "127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1", own, short, strings.ToUpper(own)}
	addrs, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range addrs {
		ip, _, err := net.ParseCIDR(a.String())
		require.NoError(t, err)
		local = append(local, ip.String())
	}
	for _, name := range local {
		require.True(t, IsLocal(name), name)
	}
	for _, name := range []string{"", ".", "192.0.2.1", "2001:db8::1", "x" + own, own + ".example", "localhos"} {
		require.False(t, IsLocal(name), name)
	}
}

// checkHosts requires what every reader promises.
func checkHosts(t *testing.T, list []Host) {
	if len(list) == 0 || len(list) > Limit {
		t.Fatalf("%d hosts", len(list))
	}
	seen := make(map[string]bool)
	for _, h := range list {
		if err := checkName(h.Name); err != nil {
			t.Fatal(err)
		}
		if h.User != "" && CheckUser(h.User) != nil || h.Address != "" && CheckAddress(h.Address) != nil || h.Port < 0 || h.Port > 65535 {
			t.Fatalf("%+v", h)
		}
		if h.Slots < 0 || h.Slots > Limit || h.MaxSlots < 0 || h.MaxSlots > Limit || h.MaxSlots > 0 && h.Slots > h.MaxSlots {
			t.Fatalf("%+v", h)
		}
		if seen[key(h.Name)] {
			t.Fatalf("%s twice", h.Name)
		}
		seen[key(h.Name)] = true
	}
}

func FuzzParseList(f *testing.F) {
	for _, text := range []string{"a:4,b,node[1-3]:2,user@c", "a,a", "[::1]:4,::2", "u@[fe80::1%eth0]:3", "a[1-2", ":,@", "a[1-3,2]-ib:1,a2-ib"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list, err := ParseList(text)
		if err != nil {
			if list != nil || strings.Contains(err.Error(), "\n") {
				t.Fatalf("%q, %v", err, list)
			}
			return
		}
		checkHosts(t, list)
	})
}
