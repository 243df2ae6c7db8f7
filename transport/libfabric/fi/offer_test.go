//go:build libfabric

package fi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// offer is what a provider of 1.17 on this machine supports of the control interface. Tests expect
// errors for the rest.
type offer struct {
	prov      string
	types     []EPType
	progress  []Progress // data progress models
	control   []Progress
	waits     []WaitObj // wait objects of event queues
	named     bool      // any node name is a valid address
	bindEQ    bool      // event queues can be bound to domains
	regMR     bool      // registrations write events to them
	affinity  bool      // event queues support a signaling vector
	flagWrite bool      // Write needs FlagWrite
	barrier   bool      // collectives
}

var both = []Progress{ProgressAuto, ProgressManual}

var offers = []offer{
	{
		prov: "net", types: []EPType{EPMsg, EPRDM}, progress: both, control: both,
		waits: []WaitObj{WaitNone, WaitUnspec, WaitFD, WaitPollFD}, bindEQ: true,
	},
	{
		prov: "tcp;ofi_rxm", types: []EPType{EPRDM}, progress: both, control: both,
		waits: []WaitObj{WaitNone, WaitUnspec, WaitFD, WaitPollFD}, barrier: true,
	},
	{
		prov: "shm", types: []EPType{EPRDM}, progress: []Progress{ProgressManual}, control: both,
		waits: []WaitObj{WaitNone, WaitUnspec, WaitFD, WaitYield}, named: true,
	},
	{
		prov: "udp;ofi_rxd", types: []EPType{EPRDM},
		progress: []Progress{ProgressManual}, control: []Progress{ProgressManual},
		waits: []WaitObj{WaitNone, WaitUnspec, WaitFD, WaitPollFD},
	},
	{
		prov: "sockets", types: []EPType{EPMsg, EPRDM, EPDgram}, progress: both, control: both,
		waits:  []WaitObj{WaitNone, WaitUnspec, WaitFD, WaitMutexCond},
		bindEQ: true, regMR: true, affinity: true, flagWrite: true,
	},
}

// eachOffer runs a test with all providers.
func eachOffer(t *testing.T, test func(*testing.T, offer)) {
	for _, o := range offers {
		t.Run(o.prov, func(t *testing.T) { test(t, o) })
	}
}

// hints returns hints that request all capabilities of the provider and support all modes.
func (o offer) hints() *Info {
	h := NewInfo()
	h.Fabric.ProvName = o.prov
	h.Mode = ^Mode(0)
	h.Domain.Mode = ^Mode(0)
	h.Domain.MRMode = ^(MRBasic | MRScalable)
	return h
}

// info returns the provider's first Info of a type that it supports.
func (o offer) info(t *testing.T) *Info {
	t.Helper()
	h := o.hints()
	h.EP.Type = o.types[0]
	infos, err := GetInfo(HeaderVersion, "", "", 0, h)
	require.NoError(t, err)
	return infos[0]
}

// open opens a fabric and a domain, which the test closes.
func (o offer) open(t *testing.T) (*Info, *Fabric, *Domain) {
	t.Helper()
	info := o.info(t)
	f, err := OpenFabric(info)
	require.NoError(t, err)
	d, err := f.OpenDomain(info)
	require.NoError(t, err)
	return info, f, d
}
