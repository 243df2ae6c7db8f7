//go:build libfabric

package fi_test

import (
	"errors"
	"fmt"

	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// peer is an endpoint with its queue and its address vector.
type peer struct {
	ep *fi.Endpoint
	cq *fi.CQ
	av *fi.AV
}

// open opens an endpoint with a queue and an address vector, and enables it.
func open(domain *fi.Domain, info *fi.Info) *peer {
	p := &peer{
		ep: must(domain.OpenEndpoint(info)),
		cq: must(domain.OpenCQ(fi.CQAttr{Format: fi.CQTagged})),
		av: must(domain.OpenAV(fi.AVAttr{Type: fi.AVTable})),
	}
	check(p.ep.BindCQ(p.cq, fi.FlagTransmit|fi.FlagRecv))
	check(p.ep.BindAV(p.av))
	check(p.ep.Enable())
	return p
}

func (p *peer) close() {
	check(p.ep.Close()) // first, because the endpoint needs the others
	check(p.cq.Close())
	check(p.av.Close())
}

// poll reads completions, which also drives progress.
func (p *peer) poll() {
	var entries [4]fi.CQEntry
	n, err := p.cq.Read(entries[:])
	if errors.Is(err, fi.ErrAvail) { // an operation has failed
		failed, err := p.cq.ReadErr()
		check(err)
		panic(failed)
	}
	if !errors.Is(err, fi.ErrAgain) { // there are completions
		check(err)
	}
	for _, e := range entries[:n] {
		if e.Flags&fi.FlagRecv != 0 {
			fmt.Printf("%v with tag %d: %d bytes\n", e.Context.User, e.Tag, e.Len)
		}
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

// Two endpoints of this process exchange a tagged message over TCP.
func Example() {
	hints := fi.NewInfo()
	hints.Fabric.ProvName = "tcp;ofi_rxm"
	hints.EP.Type = fi.EPRDM
	hints.Caps = fi.CapTagged
	infos := must(fi.GetInfo(fi.HeaderVersion, "127.0.0.1", "", fi.FlagSource, hints))

	fabric := must(fi.OpenFabric(infos[0]))
	defer func() { check(fabric.Close()) }()
	domain := must(fabric.OpenDomain(infos[0]))
	defer func() { check(domain.Close()) }()
	alice, bob := open(domain, infos[0]), open(domain, infos[0])
	defer alice.close()
	defer bob.close()

	// Two processes would exchange the names by other means; here both endpoints are in one
	// process.
	to := make([]fi.Addr, 1)
	must(alice.av.Insert([][]byte{must(bob.ep.Name())}, to, 0, 0))

	in, out := make([]byte, 64), []byte("hello, fabric")
	received, sent := fi.NewContext("a message"), fi.NewContext("mine")
	check(bob.ep.TRecv(in, fi.Desc{}, fi.AddrUnspec, 7, 0, received))
	for {
		err := alice.ep.TSend(out, fi.Desc{}, to[0], 7, sent)
		if err == nil {
			break
		}
		if !errors.Is(err, fi.ErrAgain) { // not connected yet
			panic(err)
		}
		alice.poll()
		bob.poll()
	}
	for sent.InFlight() || received.InFlight() {
		alice.poll()
		bob.poll()
	}
	fmt.Println(string(in[:len(out)]))
	// Output:
	// a message with tag 7: 13 bytes
	// hello, fabric
}
