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

// hints says what the job and its parameters require of a libfabric provider.
type hints struct {
	// provider is the provider's name in libfabric, for example "tcp;ofi_rxm". It may include names
	// of hook providers, which [hints.installHooks] removes. If it is empty, any provider is
	// suitable.
	provider string
	// ifaces are the domains that the rank may use, each a domain's name, for example "eth0", or a local IP
	// address. If there are none, [hints.choose] selects the domains. iface is the one of them that choose
	// looks for; empty: any.
	ifaces []string
	iface  string
	// nics is the largest number of NICs that the rank uses. If it is 0, these are all ifaces, or else as
	// many adapters as there are for each of the ranks that share the host.
	nics int
	// source is the address of this rank's listener, for providers for which [takesListenerAddr]
	// returns true. It is zero if the rank has no listener.
	source  netip.AddrPort
	hmem    bool // require FI_HMEM
	oneHost bool // whether all ranks run on this host
	turn    int  // number of the rank among those of this host
	sharers int  // number of ranks on this host; 0: unknown
}

// The capabilities that messages and RMA need.
const (
	capsMsg = fi.CapMsg | fi.CapSend | fi.CapRecv
	capsRMA = fi.CapRMA | fi.CapRead | fi.CapWrite | fi.CapRemoteRead | fi.CapRemoteWrite
)

// capabilitySets are sets of capabilities, the best first. choose requests one set after the other
// until a suitable provider offers all capabilities of the set.
var capabilitySets = []fi.Caps{
	capsMsg | capsRMA | fi.CapMultiRecv | fi.CapAtomic,
	capsMsg | capsRMA | fi.CapMultiRecv,
	capsMsg | capsRMA,
	capsMsg | fi.CapMultiRecv,
	capsMsg,
}

// mrModes are the bits of mr_mode that this package supports, except FI_MR_LOCAL: rxm requires
// local descriptors whenever the hints have that bit. For each set of capabilities, choose permits
// FI_MR_LOCAL only if it finds no provider without it. modes are the bits of fi_info.mode that this
// package supports. The names of hook providers begin with hookPrefix.
const (
	mrModes    = fi.MRVirtAddr | fi.MRAllocated | fi.MRProvKey | fi.MREndpoint | fi.MRHMEM
	modes      = fi.ModeContext | fi.ModeContext2
	hookPrefix = "ofi_hook_"
)

// choose returns the Infos of the NICs to open, which are all of one provider, the main one first. If no
// provider is suitable, it returns an error that lists the available ones.
func (h *hints) choose() ([]*fi.Info, error) {
	if err := h.installHooks(); err != nil {
		return nil, err
	}
	if len(h.ifaces) <= 1 {
		h.iface = strings.Join(h.ifaces, "")
		return h.chooseOne()
	}
	var all []*fi.Info
	h.source = netip.AddrPort{} // the listener's address belongs to one of the interfaces at most
	for n, name := range h.ifaces {
		if slices.Contains(h.ifaces[:n], name) {
			return nil, fmt.Errorf("interface %q is named twice", name)
		}
		h.iface = name
		infos, err := h.chooseOne()
		if err != nil {
			return nil, err
		}
		i := infos[0]
		switch {
		case i.AddrFormat == fi.AddrStr:
			return nil, fmt.Errorf("a rank uses only one interface of %s", i.Fabric.ProvName)
		case n > 0 && !sameKind(all[0], i):
			return nil, fmt.Errorf("a rank uses interfaces of one kind: %s is %s, and %s is %s", h.ifaces[0], kindOf(all[0]), name, kindOf(i))
		}
		all = append(all, i)
	}
	// All ranks have the same main lane, since interfaces need not reach each other.
	return all[:h.lanes(all, len(all))], nil
}

// chooseOne returns the Infos of the NICs to open if the job names at most one interface, h.iface.
func (h *hints) chooseOne() ([]*fi.Info, error) {
	local := ""
	if _, err := netip.ParseAddr(h.iface); err == nil {
		local = h.iface
	} else if h.iface == "" && h.oneHost {
		local = "127.0.0.1"
	}
	// The name of a provider may be the first part of another one's, as tcp of libfabric 2.x is of
	// tcp;ofi_rxm. The provider with the whole name is preferred.
	for _, exact := range []bool{true, false} {
		if exact && h.provider == "" {
			continue
		}
		for _, caps := range capabilitySets {
			for _, mr := range []fi.MRMode{mrModes, mrModes | fi.MRLocal} {
				infos, err := h.find(h.info(caps, mr), local, exact)
				if infos != nil || err != nil {
					return infos, err
				}
			}
		}
	}
	return nil, h.noProvider()
}

// info returns the hints for fi_getinfo that request these capabilities and permit these memory
// registration modes.
func (h *hints) info(caps fi.Caps, mr fi.MRMode) *fi.Info {
	info := fi.NewInfo()
	if h.hmem {
		caps |= fi.CapHMEM | capsRMA
	} else {
		mr &^= fi.MRHMEM
	}
	info.Caps, info.Mode = caps, modes
	info.Fabric.ProvName = h.provider
	info.EP.Type = fi.EPRDM
	info.Tx.MsgOrder, info.Rx.MsgOrder = fi.OrderSAS, fi.OrderSAS
	info.Domain.MRMode = mr
	info.Domain.Threading = fi.ThreadDomain
	info.Domain.ControlProgress, info.Domain.DataProgress = fi.ProgressManual, fi.ProgressManual
	info.Domain.ResourceMgmt = fi.RMEnabled
	return info
}

// find returns the Infos of the NICs to use, the main one first. That of the main one is the first usable
// Info that libfabric offers for req and that fits h. If none fits, find returns nil. If exact is true, the
// provider's whole name must be the one in req. For an IP provider, find calls fi_getinfo again with a local
// address (FI_SOURCE): that is h.source if it is valid and the provider can take it, else local if that is
// not empty. In the other cases the domain must have the name h.iface. If h.iface is empty, every domain of
// a provider without IP fits, and every domain of an IP provider whose address is routable. If the first
// usable Info is that of an adapter, find chooses among the adapters of its provider instead, by
// [hints.adapters]; only h.iface restricts the choice.
func (h *hints) find(req *fi.Info, local string, exact bool) ([]*fi.Info, error) {
	infos, err := getInfo("", "", 0, req)
	if err != nil {
		return nil, err
	}
	if exact {
		infos = slices.DeleteFunc(infos, func(i *fi.Info) bool {
			return !strings.EqualFold(i.Fabric.ProvName, req.Fabric.ProvName)
		})
	}
	_, notName := netip.ParseAddr(h.iface)
	for _, i := range infos {
		if !h.usable(i) {
			continue
		}
		for _, own := range h.natively(req, i) {
			if own, err := h.find(own, local, true); own != nil || err != nil {
				return own, err
			}
		}
		if isAdapter(i) && notName != nil {
			if a := h.adapters(infos); a != nil {
				return a, nil
			}
			continue
		}
		if !isIP(i.AddrFormat) {
			if h.iface != "" && i.Domain.Name != h.iface {
				continue
			}
			return []*fi.Info{i}, nil
		}
		node, service := local, ""
		if h.source.IsValid() && takesListenerAddr(i) {
			node, service = h.source.Addr().String(), fmt.Sprint(h.source.Port())
		}
		if node == "" {
			if h.iface != "" && i.Domain.Name != h.iface || h.iface == "" && !routable(i.SrcAddr) {
				continue
			}
			return []*fi.Info{i}, nil
		}
		same := h.info(req.Caps, req.Domain.MRMode)
		same.Fabric.ProvName = i.Fabric.ProvName
		same.Domain.ControlProgress, same.Domain.DataProgress = req.Domain.ControlProgress, req.Domain.DataProgress
		same.Domain.Threading = req.Domain.Threading
		there, err := getInfo(node, service, fi.FlagSource, same)
		if err != nil {
			return nil, err
		}
		for _, x := range there {
			if x.Fabric.ProvName == i.Fabric.ProvName && h.usable(x) {
				return []*fi.Info{x}, nil
			}
		}
	}
	return nil, nil
}

// natively returns hints that suit the provider of i better than req, the best first; none if req suits it:
//
//   - An adapter makes progress in the way that it does by itself. Providers over sockets and shared
//     memory make automatic progress by a thread, if they are not asked for manual progress, and with
//     that each message takes longer.
//   - If the provider pins memory (FI_MR_ALLOCATED), registrations run concurrently with other calls
//     (FI_THREAD_SAFE). Other providers need fewer locks.
//   - If the job asks for several NICs, a rank can use more of them if the provider does not choose the keys
//     (FI_MR_PROV_KEY).
func (h *hints) natively(req, i *fi.Info) (better []*fi.Info) {
	progress := req.Domain.DataProgress == fi.ProgressManual && !emulated(i.EP.Protocol)
	pins := req.Domain.Threading == fi.ThreadDomain && i.Domain.MRMode&fi.MRAllocated != 0
	keys := (h.nics > 1 || len(h.ifaces) > 1) && req.Domain.MRMode&i.Domain.MRMode&fi.MRProvKey != 0
	for _, own := range []bool{true, false} {
		for _, pin := range []bool{true, false} {
			for _, natural := range []bool{true, false} {
				same := !own && !pin && !natural
				if same || own && !keys || pin && !pins || natural && !progress {
					continue
				}
				hints := h.info(req.Caps, req.Domain.MRMode)
				hints.Fabric.ProvName = i.Fabric.ProvName
				hints.Domain.ControlProgress, hints.Domain.DataProgress = req.Domain.ControlProgress, req.Domain.DataProgress
				hints.Domain.Threading = req.Domain.Threading
				if own {
					hints.Domain.MRMode &^= fi.MRProvKey
				}
				if pin {
					hints.Domain.Threading = fi.ThreadSafe
				}
				if natural {
					hints.Domain.ControlProgress, hints.Domain.DataProgress = fi.ProgressUnspec, fi.ProgressUnspec
				}
				better = append(better, hints)
			}
		}
	}
	return better
}

// getInfo calls fi_getinfo. If no provider matches, it returns nil and no error.
func getInfo(node, service string, flags fi.Flags, hints *fi.Info) ([]*fi.Info, error) {
	infos, err := fi.GetInfo(fi.HeaderVersion, node, service, flags, hints)
	if errors.Is(err, fi.ErrNoData) {
		return nil, nil
	}
	return infos, err
}

// usable reports whether i has an RDM endpoint, the message order FI_ORDER_SAS and only modes that
// this package supports, and whether it reaches all ranks. If all ranks run on this host, every
// provider counts as reaching them: in libfabric 1.x, providers such as shm set neither
// FI_LOCAL_COMM nor FI_REMOTE_COMM. Otherwise i must have FI_REMOTE_COMM, or be an IP provider when
// h.source is valid or the address of i is routable.
func (h *hints) usable(i *fi.Info) bool {
	return i.EP.Type == fi.EPRDM &&
		i.Mode&^modes == 0 &&
		i.Domain.MRMode&^(mrModes|fi.MRLocal) == 0 &&
		i.Tx.MsgOrder&fi.OrderSAS != 0 && i.Rx.MsgOrder&fi.OrderSAS != 0 &&
		(h.oneHost || (i.Caps|i.Domain.Caps)&fi.CapRemoteComm != 0 || isIP(i.AddrFormat) && (h.source.IsValid() || routable(i.SrcAddr)))
}

// routable reports whether sockaddr has an IP address that is neither a loopback nor a link-local
// address.
func routable(sockaddr []byte) bool {
	a, err := decodeIP(sockaddr)
	return err == nil && !a.Addr().IsLoopback() && !a.Addr().IsLinkLocalUnicast()
}

// installHooks moves the names of hook providers from h.provider to the environment variable
// FI_HOOK, for example ofi_hook_perf from "tcp;ofi_rxm;ofi_hook_perf". libfabric layers these hooks
// over the provider. It reads the variable once, when the process first calls libfabric.
// installHooks returns an error if FI_HOOK names other hooks already, or if libfabric lacks one of
// the hooks.
func (h *hints) installHooks() error {
	var layers, hooks []string
	for _, l := range strings.Split(h.provider, ";") {
		if strings.HasPrefix(l, hookPrefix) {
			hooks = append(hooks, l)
		} else if l != "" {
			layers = append(layers, l)
		}
	}
	h.provider = strings.Join(layers, ";")
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

// checkHooks returns an error if libfabric lacks any of the hooks. libfabric itself silently
// ignores an unknown hook.
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
			return fmt.Errorf("no hook %q; libfabric has %s", h, strings.Join(known, ", "))
		}
	}
	return nil
}

// noProvider returns the error that no provider meets the hints. The error lists the domains that
// libfabric offers for RDM endpoints with the modes that this package supports, or if the job names
// a provider that exists, why each of its domains is not suitable. If fi_getinfo fails, noProvider
// returns that error.
func (h *hints) noProvider() error {
	info := fi.NewInfo()
	info.Caps, info.Mode, info.EP.Type, info.Domain.MRMode = fi.CapMsg, modes, fi.EPRDM, mrModes|fi.MRLocal
	infos, err := getInfo("", "", 0, info)
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
	if h.provider != "" {
		what += fmt.Sprintf(" %q", h.provider)
	}
	if h.iface != "" {
		what += fmt.Sprintf(" on %q", h.iface)
	}
	if h.hmem {
		what += " that accesses device memory (FI_HMEM)"
	}
	if h.provider != "" {
		if reasons := h.unsuitable(); len(reasons) > 0 {
			have = strings.Join(reasons, "; ")
		} else if v := fi.LibraryVersion(); strings.EqualFold(h.provider, "net") && v.Major() >= 2 {
			have = fmt.Sprintf("use tcp: that is the name of net in libfabric %v", v)
		}
	}
	return fmt.Errorf("%s that reaches all ranks; %s", what, have)
}
