//go:build libfabric

package launcher

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// offer is one row of the table of providers. Providers that differ only in domains and address
// formats share a row.
type offer struct {
	cells   [offerCells]string
	formats []string
	domains []string
}

const offerCells = 12

// writeProviders prints what libfabric offers on this machine. Its hints accept every mode that a
// provider may require of the program.
func writeProviders(w io.Writer) error {
	hints := fi.NewInfo()
	hints.Mode, hints.Domain.Mode = math.MaxUint64, math.MaxUint64
	hints.Domain.MRMode = ^(fi.MRBasic | fi.MRScalable)
	infos, err := fi.GetInfo(fi.HeaderVersion, "", "", 0, hints)
	if err != nil && !errors.Is(err, fi.ErrNoData) {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\nLIBFABRIC %v, built with the headers of %v\n", fi.LibraryVersion(), fi.HeaderVersion)
	row := func(cells ...string) { fmt.Fprintln(t, strings.Join(cells, "\t")) }
	row("PROVIDER", "VERSION", "ENDPOINT", "CAPS", "MR MODE", "THREADING", "PROGRESS", "AV", "INJECT", "MAX MSG", "MR KEY", "CQ DATA", "ADDRESS", "DOMAINS")
	for _, o := range offers(infos) {
		row(append(o.cells[:], strings.Join(o.formats, " "), strings.Join(o.domains, " "))...)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	known, err := fi.Providers()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "also in the library: %s\n", strings.Join(withoutOffer(known, infos), ", "))
	return err
}

// withoutOffer returns the providers of the library that offer nothing here: their device is
// missing, they only work on top of other providers, or they are hooks.
func withoutOffer(known []fi.Provider, infos []*fi.Info) []string {
	var list []string
	for _, p := range known {
		if !slices.ContainsFunc(infos, func(i *fi.Info) bool { return i.Fabric.ProvName == p.Name }) {
			list = append(list, fmt.Sprintf("%s %v (%v)", p.Name, p.Version, p.Class()))
		}
	}
	return list
}

// offers merges infos that differ only in domain and address format, in libfabric's order of
// preference.
func offers(infos []*fi.Info) []*offer {
	var all []*offer
	for _, i := range infos {
		cells := describe(i)
		at := slices.IndexFunc(all, func(o *offer) bool { return o.cells == cells })
		if at < 0 {
			at, all = len(all), append(all, &offer{cells: cells})
		}
		o := all[at]
		o.formats = insert(o.formats, plain(i.AddrFormat))
		o.domains = insert(o.domains, cmp.Or(i.Domain.Name, "-"))
	}
	return all
}

func describe(i *fi.Info) [offerCells]string {
	d := &i.Domain
	return [offerCells]string{
		i.Fabric.ProvName, i.Fabric.ProvVersion.String(), plain(i.EP.Type), caps(i.Caps), plain(d.MRMode), plain(d.Threading),
		plain(d.ControlProgress) + "/" + plain(d.DataProgress), plain(d.AVType),
		size(i.Tx.InjectSize), size(i.EP.MaxMsgSize), size(d.MRKeySize), size(d.CQDataSize),
	}
}

// caps returns the names of the capabilities that the transport can use.
func caps(have fi.Caps) string {
	var names []string
	for _, c := range []struct {
		bit  fi.Caps
		name string
	}{
		{fi.CapMsg, "msg"}, {fi.CapTagged, "tagged"}, {fi.CapRMA, "rma"}, {fi.CapAtomic, "atomic"},
		{fi.CapMultiRecv, "multi_recv"}, {fi.CapSource, "source"}, {fi.CapDirectedRecv, "directed_recv"},
	} {
		if have&c.bit != 0 {
			names = append(names, c.name)
		}
	}
	return cmp.Or(strings.Join(names, " "), "-")
}

// prefixes removes the common prefixes of libfabric's names.
var prefixes = strings.NewReplacer(
	"FI_EP_", "", "FI_MR_", "", "FI_THREAD_", "", "FI_PROGRESS_", "", "FI_AV_", "", "FI_", "", "[", "", "]", "", ",", " ")

// plain returns the name of a value, or the names of its bits, without libfabric's prefix.
func plain(v fmt.Stringer) string {
	return cmp.Or(strings.Join(strings.Fields(strings.ToLower(prefixes.Replace(v.String()))), " "), "-")
}

// size returns a number of bytes as text, and "any" for no limit, which is the largest int.
func size(n int) string {
	if n == math.MaxInt {
		return "any"
	}
	return strconv.Itoa(n)
}

func insert(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}
