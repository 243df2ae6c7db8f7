//go:build libfabric

package libfabric

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
	"github.com/weft-hpc/weft/transport/libfabric/libfabrictest"
)

// TestExplain: what Explain says about a provider must be what the tests of the transport have found
// with it.
func TestExplain(t *testing.T) {
	overShm, waiting := "Put is fi_write, Get", "no descriptor" // of shm, if the kernel copies; of net
	if fi.LibraryVersion().Major() >= 2 {
		overShm, waiting = "FI_DELIVERY_COMPLETE", "FI_WAIT_FD"
	}
	for provider, want := range map[string]map[string]string{
		"shm":                {"reaches": "this host", "waiting": "no descriptor", "mr_mode": "FI_MR_VIRT_ADDR", "RMA": overShm, "atomics": "with compare"},
		"tcp;ofi_rxm":        {"reaches": "other hosts", "addresses": "fi_av_insertsym", "waiting": "FI_WAIT_FD", "mr_mode": "none", "small": "none", "RMA": "FI_DELIVERY_COMPLETE"},
		libfabrictest.XNet(): {"reaches": "other hosts", "waiting": waiting, "addresses": "fi_av_insertsym", "small": "up to 48 B", "eager": "up to 64 KiB", "large": "fi_read", "atomics": "none"},
		"udp;ofi_rxd":        {"addresses": "one fi_av_insert inserts all", "waiting": "no descriptor", "large": "fi_read", "atomics": "none"},
	} {
		facts, err := Explain(provided(t, provider, ""))
		require.NoError(t, err, provider)
		said := make(map[string]string)
		for _, f := range facts {
			said[f.Topic] += f.Value + ": " + f.Use
		}
		require.Contains(t, said["provider"], provider)
		for topic, text := range want {
			require.Contains(t, said[topic], text, "%s, %s", provider, topic)
		}
	}
}

// TestExplainNICs: Explain must name all NICs of a rank that is alone on the host.
func TestExplainNICs(t *testing.T) {
	t.Setenv(testScript, "verbs,nics=2")
	facts, err := Explain(provided(t, libfabrictest.Name, ""))
	require.NoError(t, err)
	require.Contains(t, facts, Fact{"domain", "verbs,verbs1", ""})
	require.Contains(t, facts, Fact{"NICs", "2", "reads and writes of 64 KiB or more are divided among them; the first carries the rest"})
}

// TestExplainUnsuitable: if no provider is suitable, the error of Explain, which is also that of a
// rank, must name each domain and say why.
func TestExplainUnsuitable(t *testing.T) {
	xnet := libfabrictest.XNet()
	_, err := Explain(provided(t, xnet, "nosuch9"))
	require.ErrorContains(t, err, fmt.Sprintf("no provider %q on %q that reaches all ranks", xnet, "nosuch9"))
	require.ErrorContains(t, err, xnet+` on lo: it is not the domain "nosuch9"`)
	_, err = Explain(provided(t, "nosuch", ""))
	require.ErrorContains(t, err, `no provider "nosuch" that reaches all ranks; there are `)
	_, err = provider{}.Open(transport.Config{Size: 1, Params: provided(t, xnet, "nosuch9")})
	require.ErrorContains(t, err, xnet+` on lo: it is not the domain "nosuch9"`)
}

// TestFabricsPage: docs/fabrics.md must have what Explain says about each manner of testprov.
func TestFabricsPage(t *testing.T) {
	manners := []string{"verbs", "efa", "cxi", "psm"}
	topics := []string{"addresses", "progress", "waiting", "mr_mode", "keys", "limits", "receives", "small", "medium", "eager", "large", "RMA", "atomics"}
	said := make(map[string]string)
	for _, m := range manners {
		t.Setenv("FI_TESTPROV_SCRIPT", m)
		facts, err := Explain(provided(t, libfabrictest.Name, ""))
		require.NoError(t, err, m)
		topic := ""
		for _, f := range facts {
			if topic = cmp.Or(f.Topic, topic); said[m+topic] != "" {
				said[m+topic] += ", "
			}
			said[m+topic] += f.Value
		}
	}
	table := "| | " + strings.Join(manners, " | ") + " |\n|---" + strings.Repeat("|---", len(manners)) + "|\n"
	for _, topic := range topics {
		table += "| " + topic
		for _, m := range manners {
			table += " | " + cmp.Or(said[m+topic], "–")
		}
		table += " |\n"
	}
	page, err := os.ReadFile("../../docs/fabrics.md")
	require.NoError(t, err)
	require.Contains(t, string(page), table, "the table of docs/fabrics.md must be:\n%s", table)
}

// TestProvidersTable: docs/libfabric.md must have a table of what a domain of each provider, and of testprov in
// the manner of others, is like. The table is for libfabric 1.17.
func TestProvidersTable(t *testing.T) {
	if fi.LibraryVersion().Major() >= 2 {
		t.Skip("the table is for libfabric 1.17")
	}
	table := "| | addresses inserted | eager data up to | Put, Get | accumulates of windows | registered memory | a waiting rank sleeps |\n" +
		"|---|---|---|---|---|---|---|\n"
	choose := func(yes bool, text, otherwise string) string {
		if yes {
			return text
		}
		return otherwise
	}
	base := portBlock(t)
	for i, prov := range append(providers(), "verbs", "efa", "cxi", "psm") {
		row, name := prov, prov
		if !slices.Contains(providers(), prov) {
			t.Setenv(testScript, prov+",nics=1") // an adapter
			row, name = prov+" (testprov)", libfabrictest.Name
		}
		cfg := config(0, 2)
		cfg.Listener = listen(t, base+i, 1)[0] // as gorun gives one to each rank
		attr := newNode(t, name, cfg).dom.Attr()
		has := attr.Caps.Has
		memory := choose(attr.MRMode&transport.MRLocal != 0, "local buffers, too", "what peers access")
		table += fmt.Sprintf("| %s | %s | %d B | %s | %s | %s | %s |\n", row,
			choose(has(transport.CapSymmetric), "symmetrically", "in bulk"), attr.EagerLimit,
			choose(has(transport.CapRead|transport.CapWrite), "`fi_write`, `fi_read`", "messages"),
			choose(has(transport.CapAtomic), "`fi_atomic`", "messages"),
			memory+choose(has(transport.CapPin), "; concurrently with other calls", ""),
			choose(attr.NoWaitObject, "up to 1 ms at a time", "on a descriptor"))
	}
	page, err := os.ReadFile("../../docs/libfabric.md")
	require.NoError(t, err)
	require.True(t, strings.Contains(string(page), table), "the table of docs/libfabric.md must be:\n%s", table)
}

func provided(t *testing.T, provider, iface string) *params.Set {
	t.Helper()
	p := new(params.Set)
	require.NoError(t, p.Set("transport.libfabric.provider", provider, params.FromFlag))
	require.NoError(t, p.Set("transport.libfabric.interface", iface, params.FromFlag))
	return p
}

// TestReasons changes one attribute of a suitable info at a time.
func TestReasons(t *testing.T) {
	for want, change := range map[string]func(i *fi.Info){
		"its endpoints are FI_EP_MSG, and weft needs FI_EP_RDM": func(i *fi.Info) { i.EP.Type = fi.EPMsg },
		"it requires mode FI_MSG_PREFIX":                        func(i *fi.Info) { i.Mode |= fi.ModeMsgPrefix },
		"it requires mr_mode FI_MR_RAW":                         func(i *fi.Info) { i.Domain.MRMode |= fi.MRRaw | fi.MRLocal },
		"it has no messages (FI_MSG)":                           func(i *fi.Info) { i.Caps &^= fi.CapMsg },
		"it does not keep messages in order (FI_ORDER_SAS)":     func(i *fi.Info) { i.Rx.MsgOrder = fi.OrderRAR },
		"it does not reach other hosts":                         func(i *fi.Info) { i.Caps &^= fi.CapRemoteComm },
		"it refuses the combination of what weft needs":         func(*fi.Info) {},
	} {
		i := fi.NewInfo()
		i.EP.Type, i.Caps = fi.EPRDM, capsMsg|fi.CapRemoteComm
		i.Tx.MsgOrder, i.Rx.MsgOrder = fi.OrderSAS, fi.OrderSAS
		change(i)
		require.Equal(t, want, strings.TrimSpace((&hints{}).reason(i)))
	}
}
