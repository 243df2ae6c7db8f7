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

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/launcher/job"
	"github.com/weft-hpc/weft/transport/libfabric"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// writeUse prints how ranks would use the provider that p selects: see [libfabric.Explain].
func writeUse(w io.Writer, p *params.Set) error {
	facts, err := libfabric.Explain(p)
	if err != nil {
		return err
	}
	for _, f := range facts {
		text := f.Value
		if f.Use != "" {
			text += ": " + f.Use
		}
		for i, line := range job.Wrap(text, useWidth-useIndent) {
			if i > 0 {
				f.Topic = ""
			}
			if _, err := fmt.Fprintf(w, "%-*s%s\n", useIndent, f.Topic, line); err != nil {
				return err
			}
		}
	}
	return nil
}

// The lines of writeUse have useWidth columns at most; the text begins in column useIndent.
const (
	useWidth  = 100
	useIndent = 11
)

// offer is one row of the table of providers that gorun -info prints. fi_getinfo(3) returns one
// fi.Info for each combination of provider, endpoint, domain and address format. Infos that differ
// only in domain and address format share a row.
type offer struct {
	cells   [offerCells]string // the cells of the columns before ADDRESS: see writeProviders
	formats []string           // address formats of the infos in this row
	domains []string           // domains of the infos in this row
}

// offerCells is the number of columns before ADDRESS, in which all infos of a row are equal.
const offerCells = 12

// writeProviders prints the table of what libfabric's providers offer on this machine, and then the
// names of the providers that offer nothing. Its hints for fi_getinfo(3) accept every mode that a
// provider may require of the program, so that no provider is left out.
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

// withoutOffer returns a text such as "psm2 117.0 (core)" for each provider in known that has no
// info in infos. Such a provider has no device on this machine, or works only on top of other
// providers, or is a hook, for example.
func withoutOffer(known []fi.Provider, infos []*fi.Info) []string {
	var list []string
	for _, p := range known {
		if !slices.ContainsFunc(infos, func(i *fi.Info) bool { return i.Fabric.ProvName == p.Name }) {
			list = append(list, fmt.Sprintf("%s %v (%v)", p.Name, p.Version, p.Class()))
		}
	}
	return list
}

// offers returns the rows of the table for infos. The rows keep the order of infos, in which
// libfabric puts the providers that it prefers first.
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

// describe returns the cells of an info's row, except ADDRESS and DOMAINS.
func describe(i *fi.Info) [offerCells]string {
	d := &i.Domain
	return [offerCells]string{
		i.Fabric.ProvName, i.Fabric.ProvVersion.String(), plain(i.EP.Type), caps(i.Caps), plain(d.MRMode), plain(d.Threading),
		plain(d.ControlProgress) + "/" + plain(d.DataProgress), plain(d.AVType),
		size(i.Tx.InjectSize), size(i.EP.MaxMsgSize), size(d.MRKeySize), size(d.CQDataSize),
	}
}

// caps returns the names of those capabilities in have that weft's transport libfabric can use, or
// "-" if there are none.
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

// prefixes removes the common prefixes of libfabric's names and the brackets around lists of names,
// and replaces the commas between names by spaces.
var prefixes = strings.NewReplacer(
	"FI_EP_", "", "FI_MR_", "", "FI_THREAD_", "", "FI_PROGRESS_", "", "FI_AV_", "", "FI_", "", "[", "", "]", "", ",", " ")

// plain returns the libfabric name of a value, or the names of its bits, in lower case and without
// prefixes: "rdm" for FI_EP_RDM. It returns "-" if there is no name.
func plain(v fmt.Stringer) string {
	return cmp.Or(strings.Join(strings.Fields(strings.ToLower(prefixes.Replace(v.String()))), " "), "-")
}

// size returns a number of bytes as text. math.MaxInt means that there is no limit, for which size
// returns "any".
func size(n int) string {
	if n == math.MaxInt {
		return "any"
	}
	return strconv.Itoa(n)
}

// insert appends s to list unless list has s already.
func insert(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}
