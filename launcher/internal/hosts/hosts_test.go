package hosts

import (
	"fmt"
	"net"
	"os"
	"slices"
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
		// If mentions of a host have different users, ports or addresses, the first of them counts.
		{[]Host{{Name: "a", User: "u"}, {Name: "a", User: "v", Port: 3}, {Name: "a", Port: 4, Address: "x"}}, []Host{{Name: "a", User: "u", Port: 3, Address: "x", Slots: 3}}},
		// The limits of all mentions add up; a mention without a limit counts with its slots, or as
		// 1.
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
		{[]Host{{Name: "a", MaxSlots: 3}}, []Host{{Name: "a", Slots: 3, MaxSlots: 3, User: "u"}}},
		{[]Host{{Name: "a", MaxSlots: 9}}, []Host{all[0]}},
	} {
		got, err := Restrict(all, test.some, "f")
		require.NoError(t, err)
		require.Equal(t, test.want, got)
	}
	_, err := Restrict(all, []Host{{Name: "d"}}, "hosts.txt")
	require.EqualError(t, err, `expected a host of hosts.txt, found "d"`)
	_, err = Restrict(all, []Host{{Name: "a", Slots: 9}}, "hosts.txt")
	require.EqualError(t, err, `expected at most 8 slots of a, as hosts.txt says, found 9`)

	// localhost, 127.0.0.1 and the hostname mean the same host.
	own, err := os.Hostname()
	require.NoError(t, err)
	here := []Host{{Name: "a"}, {Name: own, Slots: 4, Port: 2}}
	for _, some := range [][]Host{{{Name: "localhost"}}, {{Name: "127.0.0.1", Slots: 1}, {Name: own, Slots: 3}}} {
		got, err := Restrict(here, some, "f")
		require.NoError(t, err)
		require.Equal(t, here[1:], got)
	}
	_, err = Restrict(all, []Host{{Name: "localhost"}}, "f")
	require.EqualError(t, err, `expected a host of f, found "localhost"`)

	got, err := Override(all, []Host{{Name: "localhost"}, {Name: "a", Slots: 2}, {Name: "d", Slots: 3}}, "f")
	require.NoError(t, err)
	require.Equal(t, []Host{{Name: "localhost"}, {Name: "a", Slots: 2, MaxSlots: 8, User: "u"}, {Name: "d", Slots: 3}}, got)
	_, err = Override(all, []Host{{Name: "a", Slots: 9}}, "hosts.txt")
	require.EqualError(t, err, `expected at most 8 slots of a, as hosts.txt says, found 9`)
}

func TestUnify(t *testing.T) {
	own, err := os.Hostname()
	require.NoError(t, err)
	for _, test := range []struct{ list, want []Host }{
		{nil, nil},
		{[]Host{{Name: "a"}, {Name: "b", Slots: 2}, {Name: "a"}}, []Host{{Name: "a", Slots: 2}, {Name: "b", Slots: 2}}},
		{[]Host{{Name: "localhost"}}, []Host{{Name: "localhost"}}},
		{[]Host{{Name: "localhost", Slots: 2}, {Name: "a", Slots: 1}, {Name: "::1", Slots: 3}}, []Host{{Name: "localhost", Slots: 5}, {Name: "a", Slots: 1}}},
		{[]Host{{Name: own}, {Name: "127.0.0.1"}}, []Host{{Name: own, Slots: 2}}},
		{[]Host{{Name: "127.0.0.1", User: "u"}, {Name: own, User: "v", Port: 3, MaxSlots: 2}}, []Host{{Name: "127.0.0.1", User: "u", Port: 3, Slots: 2, MaxSlots: 3}}},
	} {
		require.Equal(t, test.want, Unify(test.list))
	}
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
		{"[::1", `expected "]" after "[", found "[::1"`},
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

// checkHosts fails the test unless list has the properties of every list that functions of this
// package return: from 1 to Limit hosts with valid values, and each host only once.
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

// FuzzRestrict reads an arbitrary hostfile and an arbitrary list of hosts. The result of Restrict
// must have only hosts of the hostfile, and no higher limits than the hostfile.
func FuzzRestrict(f *testing.F) {
	for _, seed := range [][2]string{
		{"a slots=4 max_slots=8\nb\n", "b,a:8"}, {"a[1-3]:2", "a[2-3]"}, {"u@a port=3", "v@a"}, {"localhost max_slots=2", "127.0.0.1,::1:1"}, {"a", "b"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, file, list string) {
		all, err1 := ReadFile("f", strings.NewReader(file))
		some, err2 := ParseList(list)
		if err1 != nil || err2 != nil {
			return
		}
		checkHosts(t, Unify(append(slices.Clone(all), some...)))
		if over, err := Override(all, some, "f"); err == nil {
			checkHosts(t, over)
		}
		got, err := Restrict(all, some, "f")
		if err != nil {
			if got != nil || strings.Contains(err.Error(), "\n") {
				t.Fatalf("%q, %v", err, got)
			}
			return
		}
		checkHosts(t, got)
		known := make(map[string]Host)
		for _, h := range all {
			known[key(h.Name)] = h
		}
		for _, h := range got {
			if k, ok := known[key(h.Name)]; !ok || k.MaxSlots > 0 && (h.MaxSlots == 0 || h.MaxSlots > k.MaxSlots) {
				t.Fatalf("%+v of %+v", h, k)
			}
		}
	})
}
