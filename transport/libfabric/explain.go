//go:build libfabric

package libfabric

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// Fact is one line of what [Explain] says.
type Fact struct {
	Topic string // what the fact is about, such as "mr_mode"
	Value string // what the provider offers or requires
	Use   string // how this package uses it; may be empty
}

// Explain says how a rank on this host would use the provider and the device that the parameters
// transport.libfabric.provider and transport.libfabric.interface select. For this it opens a domain
// as the only rank of this host does, reads its attributes, and closes it. If no provider is suitable
// for ranks of several hosts, Explain describes the one for ranks of one host. If none is suitable for
// these either, the error says why.
func Explain(p *params.Set) ([]Fact, error) {
	cfg := transport.Config{Size: 1, HostSize: 1, Params: p}
	infos, err := hintsOf(cfg).choose()
	if err != nil {
		cfg.OneHost = true
		if infos, err = hintsOf(cfg).choose(); err != nil {
			return nil, fmt.Errorf("libfabric: %w", err)
		}
	}
	i, d := infos[0], newDomain(cfg, infos)
	if err := d.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("libfabric: open %s: %w", i.Fabric.ProvName, err), d.Close())
	}
	x := explanation{d: d, i: i}
	x.device()
	x.calls()
	x.memory()
	x.messages()
	x.oneSided()
	return x.facts, d.Close()
}

type explanation struct {
	d     *domain
	i     *fi.Info
	facts []Fact
}

func (x *explanation) add(topic, value, use string) {
	x.facts = append(x.facts, Fact{topic, value, use})
}

func (x *explanation) device() {
	i, d := x.i, x.d
	x.add("provider", fmt.Sprintf("%s %v, %v", i.Fabric.ProvName, i.Fabric.ProvVersion, i.EP.Protocol), "")
	x.add("domain", d.attr.Name, "")
	if n := len(d.lanes); n > 1 {
		x.add("NICs", fmt.Sprint(n), fmt.Sprintf("reads and writes of %s or more are divided among them; the first carries the rest", limitText(d.stripeMin)))
	}
	if i.NIC != nil {
		x.add("device", i.NIC.Device.Name, strings.TrimSpace(i.NIC.Device.Driver+" "+i.NIC.Device.Firmware))
	}
	reaches, use := "other hosts", ""
	if d.cfg.OneHost {
		reaches, use = "this host", "no FI_REMOTE_COMM, and no address that other hosts can route to"
	}
	x.add("reaches", reaches, use)
	use = "the launcher passes the addresses on; one fi_av_insert inserts all"
	if d.attr.Caps.Has(transport.CapSymmetric) {
		use = "if gorun has assigned ports, fi_av_insertsym inserts them; otherwise the launcher passes them on"
	}
	x.add("addresses", i.AddrFormat.String(), use)
}

// calls adds how calls are made and how completions are found.
func (x *explanation) calls() {
	i, d := x.i, x.d
	use := "the engine makes one call at a time"
	if d.attr.Caps.Has(transport.CapPin) {
		use += "; registrations run concurrently"
	}
	x.add("threading", i.Domain.Threading.String(), use)
	use = "data moves without calls"
	if d.attr.Progress == transport.ProgressManual {
		use = "data moves only in calls: a goroutine of the engine makes them while the program computes"
	}
	x.add("progress", fmt.Sprintf("control %v, data %v", i.Domain.ControlProgress, i.Domain.DataProgress), use)
	wait, use := "FI_WAIT_FD", "a waiting rank sleeps until a completion comes"
	if !d.canSleep {
		wait, use = "no descriptor", fmt.Sprintf("a waiting rank sleeps for up to %v at a time", maxNap)
	}
	x.add("waiting", wait, use)
	x.add("order", fi.OrderSAS.String(), "messages from a rank arrive in their order")
	x.add("queues", fmt.Sprintf("tx %d, rx %d, cq %d", i.Tx.Size, i.Rx.Size, d.queueSize()), fmt.Sprintf("weft has up to %d operations in flight", len(d.arena.slots)))
}

// memory adds what the provider requires of memory.
func (x *explanation) memory() {
	i := x.i
	topic := "mr_mode"
	for _, m := range []struct {
		bit fi.MRMode
		use string
	}{
		{fi.MRLocal, "local buffers are registered, too: eager messages are copied through registered buffers, and the receiver of a longer message registers its memory to read it"},
		{fi.MRVirtAddr, "peers name remote memory by its virtual address"},
		{fi.MRAllocated, "memory is registered when it is allocated, and stays so until the registration ends"},
		{fi.MRProvKey, "the provider chooses the keys"},
		{fi.MREndpoint, "each region is bound to the endpoint"},
		{fi.MRHMEM, "a local buffer in device memory must be registered"},
	} {
		if i.Domain.MRMode&m.bit != 0 {
			x.add(topic, m.bit.String(), m.use)
			topic = ""
		}
	}
	if topic != "" {
		x.add(topic, "none", "memory needs no registration, except what peers access")
	}
	if i.Domain.MRMode&fi.MRProvKey == 0 {
		x.add("keys", fmt.Sprintf("%d bytes", i.Domain.MRKeySize), "weft chooses random keys")
	}
	if x.d.attr.Caps.Has(transport.CapDevice) {
		x.add("devices", "FI_HMEM", "the receiver of a long message accesses device memory; short messages are copied through host memory")
	} else {
		x.add("devices", "none", "messages in device memory are copied through host memory; to use FI_HMEM, set transport.libfabric.hmem=true")
	}
}

// messages adds the path of messages of each size, with the data that a message carries at most.
func (x *explanation) messages() {
	i, d := x.i, x.d
	overhead := frameSize + transport.HeaderSize
	x.add("limits", fmt.Sprintf("message %s, inject %s, iov %d", limitText(i.EP.MaxMsgSize), limitText(i.Tx.InjectSize), i.Tx.IovLimit), "")
	multi := "one receive buffer for each message"
	if d.multiRecv {
		multi = "receive buffers for many messages (FI_MULTI_RECV)"
	}
	x.add("receives", multi, "")
	small, medium, eager := d.inject-overhead, min(copyLimit-transport.HeaderSize, d.attr.EagerLimit), d.attr.EagerLimit
	if d.mayRefuse {
		x.add("small", "none", "no fi_inject: a message that the target refuses (FI_ENORX) is sent again from its copy")
	} else if small > 0 {
		x.add("small", "up to "+limitText(min(small, eager)), "fi_inject; complete at once")
	} else {
		x.add("small", "none", fmt.Sprintf("no message fits into fi_inject with the %d bytes of its headers", overhead))
	}
	if medium > small {
		x.add("medium", "up to "+limitText(medium), "fi_send from a registered copy; complete at once")
	}
	if eager > medium {
		x.add("eager", "up to "+limitText(eager), "fi_sendv from the program's memory, which is pinned")
	}
	if d.attr.Caps.Has(transport.CapRead) {
		x.add("large", "rendezvous", "the sender registers its memory, and the receiver reads it by fi_read")
	} else {
		x.add("large", "in parts", fmt.Sprintf("messages of up to %s, because the provider has no RMA", limitText(d.attr.MaxMsgSize)))
	}
}

// oneSided adds how windows use the provider.
func (x *explanation) oneSided() {
	i, d := x.i, x.d
	if !d.attr.Caps.Has(transport.CapRead) {
		x.add("RMA", "none", "windows of ranks on different hosts are served by messages, which need the target's processor")
	} else {
		use := "Put is fi_write with FI_DELIVERY_COMPLETE, Get is fi_read"
		if d.writeFlags&fi.FlagDeliveryComplete == 0 {
			use = "Put is fi_write, Get is fi_read"
		}
		x.add("RMA", limitText(i.EP.MaxMsgSize), use)
	}
	var n [families]int
	for f := range families {
		for _, types := range d.atomics[f] {
			for _, most := range types {
				if most > 0 {
					n[f]++
				}
			}
		}
	}
	if n == [families]int{} {
		x.add("atomics", "none", "accumulates of windows are served by messages")
		return
	}
	x.add("atomics", fmt.Sprintf("%d, with fetch %d, with compare %d", n[plain], n[fetching], n[swapping]),
		"pairs of an operation and a type that fi_atomic does; messages serve the others")
}

// limitText returns a number of bytes as text.
func limitText(n int) string {
	switch {
	case n >= math.MaxInt>>1:
		return "any size"
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

// unsuitable returns a text for each domain of h.provider that says why no rank can use it. It is
// for the error after choose has found none.
func (h *hints) unsuitable() []string {
	all := fi.NewInfo()
	all.Fabric.ProvName = h.provider
	all.Mode, all.Domain.Mode = math.MaxUint64, math.MaxUint64
	all.Domain.MRMode = ^(fi.MRBasic | fi.MRScalable)
	infos, err := getInfo("", "", 0, all)
	if err != nil {
		return nil
	}
	var list []string
	for _, i := range infos {
		text := fmt.Sprintf("%s on %s: %s", i.Fabric.ProvName, i.Domain.Name, h.reason(i))
		if !slices.Contains(list, text) {
			list = append(list, text)
		}
	}
	return list
}

// reason says why no rank can use i, which is an answer to hints without requirements.
func (h *hints) reason(i *fi.Info) string {
	var reasons []string
	if i.EP.Type != fi.EPRDM {
		reasons = append(reasons, fmt.Sprintf("its endpoints are %v, and weft needs FI_EP_RDM", i.EP.Type))
	}
	if more := i.Mode &^ modes; more != 0 {
		reasons = append(reasons, fmt.Sprintf("it requires mode %v", more))
	}
	if h.hmem && i.Caps&fi.CapHMEM == 0 {
		reasons = append(reasons, "it cannot access device memory (FI_HMEM)")
	}
	if more := i.Domain.MRMode &^ (mrModes | fi.MRLocal); more != 0 {
		reasons = append(reasons, fmt.Sprintf("it requires mr_mode %v", more))
	}
	if i.Caps&capsMsg != capsMsg {
		reasons = append(reasons, "it has no messages (FI_MSG)")
	}
	if i.EP.Type == fi.EPRDM && (i.Tx.MsgOrder&fi.OrderSAS == 0 || i.Rx.MsgOrder&fi.OrderSAS == 0) {
		reasons = append(reasons, "it does not keep messages in order (FI_ORDER_SAS)")
	}
	if h.iface != "" && i.Domain.Name != h.iface {
		reasons = append(reasons, fmt.Sprintf("it is not the domain %q", h.iface))
	}
	if len(reasons) == 0 && !h.usable(i) {
		reasons = append(reasons, "it does not reach other hosts")
	}
	return cmp.Or(strings.Join(reasons, "; "), "it refuses the combination of what weft needs")
}
