//go:build libfabric && linux

package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport/libfabric/libfabrictest"
)

// TestStressManners runs jobs over libfabric, with testprov in the manner of several providers, and with
// faults that the transport hides.
func TestStressManners(t *testing.T) {
	var out bytes.Buffer
	const manners = "plain;verbs,nics=2;efa;cxi,nics=3;psm;late=300;enorx=6;eagain=30;efa,reorder=3"
	args := []string{"-jobs", "12", "-kills", "8", "-seed", "1", "-first", "-timeout", "7m", "-testprov", manners}
	require.Zero(t, run(&out, &out, args), &out)
}

// TestStressProviders runs jobs over the providers of libfabric that do not report the end of every peer. So no
// rank is killed.
func TestStressProviders(t *testing.T) {
	for _, provider := range []string{"shm", libfabrictest.XNet(), "udp;ofi_rxd", "sockets"} {
		t.Run(provider, func(t *testing.T) {
			t.Setenv("WEFT_TRANSPORT_LIBFABRIC_PROVIDER", provider)
			var out bytes.Buffer
			args := []string{"-jobs", "2", "-kills", "0", "-seed", "88", "-first", "-timeout", "4m", "-transports", "libfabric"}
			require.Zero(t, run(&out, &out, args), &out)
		})
	}
}

// TestStressRXM runs jobs over the provider of libfabric for tcp.
func TestStressRXM(t *testing.T) {
	t.Setenv("WEFT_TRANSPORT_LIBFABRIC_PROVIDER", "tcp;ofi_rxm")
	var out bytes.Buffer
	args := []string{"-jobs", "2", "-kills", "4", "-seed", "1", "-first", "-timeout", "4m", "-transports", "libfabric"}
	require.Zero(t, run(&out, &out, args), &out)
}
