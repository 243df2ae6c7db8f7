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
	provider string         // the provider's name in libfabric, for example "tcp;ofi_rxm"; empty: any
	iface    string         // a domain's name, for example "eth0", or a local IP address; empty: any
	source   netip.AddrPort // the address that an endpoint of an IP provider must have; zero: any
	oneHost  bool           // whether all ranks run on this host
}

// The capabilities that messages and RMA need.
const (
	capsMsg = fi.CapMsg | fi.CapSend | fi.CapRecv
	capsRMA = fi.CapRMA | fi.CapRead | fi.CapWrite | fi.CapRemoteRead | fi.CapRemoteWrite
)

// capabilitySets are sets of capabilities, the best first. choose requests one after the other
// until a provider offers all capabilities of the set.
var capabilitySets = []fi.Caps{
	capsMsg | capsRMA | fi.CapMultiRecv | fi.CapAtomic,
	capsMsg | capsRMA | fi.CapMultiRecv,
	capsMsg | capsRMA,
	capsMsg | fi.CapMultiRecv,
	capsMsg,
}

// mrModes are the memory registration modes that this package supports, except MRLocal, and modes
// are the other modes that it supports. MRLocal is left out because rxm requires local descriptors
// whenever the hints permit that. choose permits MRLocal only if no provider can be used without
// it.
const (
	mrModes    = fi.MRVirtAddr | fi.MRAllocated | fi.MRProvKey | fi.MREndpoint
	modes      = fi.ModeContext | fi.ModeContext2
	hookPrefix = "ofi_hook_"
)

// choose returns the Info of the provider and device to open.
func (h *hints) choose() (*fi.Info, error) {
	if err := h.installHooks(); err != nil {
		return nil, err
	}
	local := ""
	if _, err := netip.ParseAddr(h.iface); err == nil {
		local = h.iface
	} else if h.iface == "" && h.oneHost {
		local = "127.0.0.1"
	}
	for _, caps := range capabilitySets {
		for _, mr := range []fi.MRMode{mrModes, mrModes | fi.MRLocal} {
			info, err := h.find(h.info(caps, mr), local)
			if info != nil || err != nil {
				return info, err
			}
		}
	}
	return nil, h.noProvider()
}

// info returns the hints for fi_getinfo that request these capabilities and memory registration
// modes.
func (h *hints) info(caps fi.Caps, mr fi.MRMode) *fi.Info {
	info := fi.NewInfo()
	info.Caps, info.Mode = caps, modes
	info.Fabric.ProvName = h.provider
	info.EP.Type = fi.EPRDM
	info.Tx.MsgOrder, info.Rx.MsgOrder = fi.OrderSAS, fi.OrderSAS
	info.Domain.MRMode = mr
	info.Domain.Threading = fi.ThreadDomain
	info.Domain.ControlProgress, info.Domain.DataProgress = fi.ProgressManual, fi.ProgressManual
	info.Domain.ResourceMgmt = fi.RMEnabled
	info.Domain.AVType = fi.AVTable
	return info
}

// find returns the Info of the first usable provider that libfabric offers for req, or nil if there
// is none. An IP provider must have the local address h.source if it can take that, else local, if
// that is not empty; for this find calls fi_getinfo again with the address.
func (h *hints) find(req *fi.Info, local string) (*fi.Info, error) {
	infos, err := getInfo("", "", 0, req)
	if err != nil {
		return nil, err
	}
	for _, i := range infos {
		if !h.usable(i) {
			continue
		}
		if !isIP(i.AddrFormat) {
			if h.iface != "" && i.Domain.Name != h.iface {
				continue
			}
			return i, nil
		}
		node, service := local, ""
		if h.source.IsValid() && takesListenerAddr(i) {
			node, service = h.source.Addr().String(), fmt.Sprint(h.source.Port())
		}
		if node == "" {
			if h.iface != "" && i.Domain.Name != h.iface || h.iface == "" && !routable(i.SrcAddr) {
				continue
			}
			return i, nil
		}
		same := h.info(req.Caps, req.Domain.MRMode)
		same.Fabric.ProvName = i.Fabric.ProvName
		there, err := getInfo(node, service, fi.FlagSource, same)
		if err != nil {
			return nil, err
		}
		for _, x := range there {
			if x.Fabric.ProvName == i.Fabric.ProvName && h.usable(x) {
				return x, nil
			}
		}
	}
	return nil, nil
}

// getInfo calls fi_getinfo. If no provider matches, it returns nil and no error.
func getInfo(node, service string, flags fi.Flags, hints *fi.Info) ([]*fi.Info, error) {
	infos, err := fi.GetInfo(fi.HeaderVersion, node, service, flags, hints)
	if errors.Is(err, fi.ErrNoData) {
		return nil, nil
	}
	return infos, err
}

// usable reports whether this package supports the modes that a provider requires, and whether the
// provider reaches all ranks. If all ranks run on this host, no capability is required for that,
// because in libfabric 1.x providers such as shm set neither FI_LOCAL_COMM nor FI_REMOTE_COMM.
func (h *hints) usable(i *fi.Info) bool {
	return i.EP.Type == fi.EPRDM &&
		i.Mode&^modes == 0 &&
		i.Domain.MRMode&^(mrModes|fi.MRLocal) == 0 &&
		i.Tx.MsgOrder&fi.OrderSAS != 0 && i.Rx.MsgOrder&fi.OrderSAS != 0 &&
		(h.oneHost || (i.Caps|i.Domain.Caps)&fi.CapRemoteComm != 0 || isIP(i.AddrFormat) && (h.source.IsValid() || routable(i.SrcAddr)))
}

// routable reports whether other hosts may be able to reach the IP address in sockaddr.
func routable(sockaddr []byte) bool {
	a, err := decodeIP(sockaddr)
	return err == nil && !a.Addr().IsLoopback() && !a.Addr().IsLinkLocalUnicast()
}

// installHooks moves the names of hook providers from h.provider to libfabric, for example
// ofi_hook_perf from "tcp;ofi_rxm;ofi_hook_perf". libfabric puts the hooks in the environment
// variable FI_HOOK around the provider. It reads the variable once, at the first call of the
// process.
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

// checkHooks returns an error if libfabric does not have one of the hooks. libfabric itself
// silently ignores an unknown hook.
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

// noProvider returns the error that no provider meets the hints. The error lists the available
// providers.
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
	return fmt.Errorf("%s that reaches all ranks; %s", what, have)
}
