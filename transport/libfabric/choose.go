//go:build libfabric

package libfabric

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// wish is what the job and its parameters ask of a provider.
type wish struct {
	provider string         // libfabric's name, as "tcp;ofi_rxm"; empty: any
	iface    string         // a domain's name, as "eth0", or a local address; empty: any
	source   netip.AddrPort // where the endpoint must be, if it is one of IP
	oneHost  bool
}

// What is asked for, in falling ambition.
const (
	capsMsg = fi.CapMsg | fi.CapSend | fi.CapRecv
	capsRMA = fi.CapRMA | fi.CapRead | fi.CapWrite | fi.CapRemoteRead | fi.CapRemoteWrite
)

var ambitions = []fi.Caps{
	capsMsg | capsRMA | fi.CapMultiRecv | fi.CapAtomic,
	capsMsg | capsRMA | fi.CapMultiRecv,
	capsMsg | capsRMA,
	capsMsg | fi.CapMultiRecv,
	capsMsg,
}

// What the domain does for registered memory. A provider that can do without
// local descriptors is taken so: rxm asks for them as soon as they are offered.
const (
	mrModes    = fi.MRVirtAddr | fi.MRAllocated | fi.MRProvKey | fi.MREndpoint
	modes      = fi.ModeContext | fi.ModeContext2
	hookPrefix = "ofi_hook_"
)

// choose finds the provider, and the device of it, to open.
func (w *wish) choose() (*fi.Info, error) {
	if err := w.installHooks(); err != nil {
		return nil, err
	}
	local := ""
	if _, err := netip.ParseAddr(w.iface); err == nil {
		local = w.iface
	} else if w.iface == "" && w.oneHost {
		local = "127.0.0.1"
	}
	for _, caps := range ambitions {
		for _, mr := range []fi.MRMode{mrModes, mrModes | fi.MRLocal} {
			info, err := w.find(w.hints(caps, mr), local)
			if info != nil || err != nil {
				return info, err
			}
		}
	}
	return nil, w.nothing()
}

func (w *wish) hints(caps fi.Caps, mr fi.MRMode) *fi.Info {
	h := fi.NewInfo()
	h.Caps, h.Mode = caps, modes
	h.Fabric.ProvName = w.provider
	h.EP.Type = fi.EPRDM
	h.Tx.MsgOrder, h.Rx.MsgOrder = fi.OrderSAS, fi.OrderSAS
	h.Domain.MRMode = mr
	h.Domain.Threading = fi.ThreadDomain
	h.Domain.ControlProgress, h.Domain.DataProgress = fi.ProgressManual, fi.ProgressManual
	h.Domain.ResourceMgmt = fi.RMEnabled
	h.Domain.AVType = fi.AVTable
	return h
}

// find takes the first that libfabric offers; nil where there is none. One of
// IP is asked for a second time with the address that it is to have.
func (w *wish) find(h *fi.Info, local string) (*fi.Info, error) {
	infos, err := ask("", "", 0, h)
	if err != nil {
		return nil, err
	}
	for _, i := range infos {
		if !w.suits(i) {
			continue
		}
		if !isIP(i.AddrFormat) {
			if w.iface != "" && i.Domain.Name != w.iface {
				continue
			}
			return i, nil
		}
		node, service := local, ""
		if w.source.IsValid() && shakesHands(i) {
			node, service = w.source.Addr().String(), fmt.Sprint(w.source.Port())
		}
		if node == "" {
			if w.iface != "" && i.Domain.Name != w.iface || w.iface == "" && !routable(i.SrcAddr) {
				continue
			}
			return i, nil
		}
		same := w.hints(h.Caps, h.Domain.MRMode)
		same.Fabric.ProvName = i.Fabric.ProvName
		there, err := ask(node, service, fi.FlagSource, same)
		if err != nil {
			return nil, err
		}
		for _, x := range there {
			if x.Fabric.ProvName == i.Fabric.ProvName && w.suits(x) {
				return x, nil
			}
		}
	}
	return nil, nil
}

// ask is fi_getinfo, for which nothing is no error.
func ask(node, service string, flags fi.Flags, hints *fi.Info) ([]*fi.Info, error) {
	infos, err := fi.GetInfo(fi.HeaderVersion, node, service, flags, hints)
	if errors.Is(err, fi.ErrNoData) {
		return nil, nil
	}
	return infos, err
}

// suits checks what a provider asks of us, and whom it reaches. shm and its like
// say neither FI_LOCAL_COMM nor FI_REMOTE_COMM in 1.x.
func (w *wish) suits(i *fi.Info) bool {
	return i.EP.Type == fi.EPRDM &&
		i.Mode&^modes == 0 &&
		i.Domain.MRMode&^(mrModes|fi.MRLocal) == 0 &&
		i.Tx.MsgOrder&fi.OrderSAS != 0 && i.Rx.MsgOrder&fi.OrderSAS != 0 &&
		(w.oneHost || (i.Caps|i.Domain.Caps)&fi.CapRemoteComm != 0 || isIP(i.AddrFormat) && (w.source.IsValid() || routable(i.SrcAddr)))
}

// routable says whether other hosts may reach an IP address.
func routable(sockaddr []byte) bool {
	a, err := decodeIP(sockaddr)
	return err == nil && !a.Addr().IsLoopback() && !a.Addr().IsLinkLocalUnicast()
}

// installHooks has libfabric put its hooks around the provider, as in
// "tcp;ofi_rxm;ofi_hook_perf". It takes them from the environment, and reads that
// once, at its first call in the process.
func (w *wish) installHooks() error {
	var layers, hooks []string
	for _, l := range strings.Split(w.provider, ";") {
		if strings.HasPrefix(l, hookPrefix) {
			hooks = append(hooks, l)
		} else if l != "" {
			layers = append(layers, l)
		}
	}
	w.provider = strings.Join(layers, ";")
	if len(hooks) == 0 {
		return nil
	}
	want := strings.Join(hooks, ";")
	if have := os.Getenv("FI_HOOK"); have != "" && have != want {
		return fmt.Errorf("hooks %s: FI_HOOK asks for %s", want, have)
	}
	if err := os.Setenv("FI_HOOK", want); err != nil {
		return fmt.Errorf("hooks %s: %w", want, err)
	}
	return checkHooks(hooks)
}

// checkHooks says which of the hooks there is none of: libfabric itself leaves
// it out in silence.
func checkHooks(hooks []string) error {
	all, err := fi.Providers()
	if err != nil {
		return err
	}
	var known []string
	for _, p := range all {
		if p.Class() == fi.ProviderHook {
			known = append(known, p.Name)
		}
	}
	for _, h := range hooks {
		if !slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(k, h) }) {
			return fmt.Errorf("no hook %q; there are %s", h, strings.Join(known, ", "))
		}
	}
	return nil
}

// nothing is the error of a wish that no provider fulfils: which there are.
func (w *wish) nothing() error {
	h := fi.NewInfo()
	h.Caps, h.Mode, h.EP.Type, h.Domain.MRMode = fi.CapMsg, modes, fi.EPRDM, mrModes|fi.MRLocal
	infos, err := ask("", "", 0, h)
	if err != nil {
		return err
	}
	var names []string
	for _, i := range infos {
		if n := i.Fabric.ProvName + " on " + i.Domain.Name; !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	have := "there are none"
	if len(names) > 0 {
		have = "there are " + strings.Join(names, ", ")
	}
	what := "no provider"
	if w.provider != "" {
		what += fmt.Sprintf(" %q", w.provider)
	}
	if w.iface != "" {
		what += fmt.Sprintf(" on %q", w.iface)
	}
	return fmt.Errorf("%s that reaches all ranks; %s", what, have)
}
