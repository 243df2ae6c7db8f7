//go:build libfabric

package fi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// offer describes what a provider of libfabric 1.17 or 2.1 supports. The tests expect errors for
// everything else.
type offer struct {
	prov      string
	types     []EPType
	progress  []Progress // the supported models of DataProgress
	control   []Progress // the supported models of ControlProgress
	waits     []WaitObj  // the supported wait objects of event queues
	named     bool       // any string is a valid node, because addresses are names
	bindEQ    bool       // event queues can be bound to domains
	regMR     bool       // memory registrations write events to a bound event queue
	affinity  bool       // event queues support FlagAffinity
	flagWrite bool       // EQ.Write returns an error if the queue was opened without FlagWrite
	barrier   bool       // QueryCollective for a barrier succeeds
}

var both = []Progress{ProgressAuto, ProgressManual}

var offers = []offer{
	{
		prov: xnet, types: []EPType{EPMsg, EPRDM}, progress: both, control: both,
		waits: []WaitObj{WaitNone, WaitUnspec, WaitFD, WaitPollFD}, bindEQ: true, affinity: v2,
	},
	{
		prov: "tcp;ofi_rxm", types: []EPType{EPRDM}, progress: both, control: both,
		waits: []WaitObj{WaitNone, WaitUnspec, WaitFD, WaitPollFD}, barrier: !v2, affinity: v2,
	},
	{
		prov: "shm", types: []EPType{EPRDM}, progress: []Progress{ProgressManual}, control: both,
		waits: []WaitObj{WaitNone, WaitUnspec, WaitFD, WaitYield}, named: true, affinity: v2,
	},
	{
		prov: "udp;ofi_rxd", types: []EPType{EPRDM},
		progress: []Progress{ProgressManual}, control: in2(both, []Progress{ProgressManual}),
		waits: []WaitObj{WaitNone, WaitUnspec, WaitFD, WaitPollFD}, affinity: v2,
	},
	{
		prov: "sockets", types: []EPType{EPMsg, EPRDM, EPDgram}, progress: both, control: both,
		waits:  []WaitObj{WaitNone, WaitUnspec, WaitFD, WaitMutexCond},
		bindEQ: true, regMR: !v2, affinity: true, flagWrite: true,
	},
}

// eachOffer runs a test with each provider in offers.
func eachOffer(t *testing.T, test func(*testing.T, offer)) {
	for _, o := range offers {
		t.Run(o.prov, func(t *testing.T) { test(t, o) })
	}
}

// hints returns hints for the provider that require no capability and support all modes.
func (o offer) hints() *Info {
	h := NewInfo()
	h.Fabric.ProvName = o.prov
	h.Mode = ^Mode(0)
	h.Domain.Mode = ^Mode(0)
	h.Domain.MRMode = ^(MRBasic | MRScalable)
	return h
}

// info returns the provider's first Info for the first endpoint type that the provider supports.
func (o offer) info(t *testing.T) *Info {
	t.Helper()
	h := o.hints()
	h.EP.Type = o.types[0]
	infos, err := GetInfo(HeaderVersion, "", "", 0, h)
	require.NoError(t, err)
	return named(t, infos, o.prov)
}

// open opens a fabric and a domain. The caller closes both.
func (o offer) open(t *testing.T) (*Info, *Fabric, *Domain) {
	t.Helper()
	info := o.info(t)
	f, err := OpenFabric(info)
	require.NoError(t, err)
	d, err := f.OpenDomain(info)
	require.NoError(t, err)
	return info, f, d
}
