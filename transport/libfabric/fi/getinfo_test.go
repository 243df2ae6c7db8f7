//go:build libfabric

package fi

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

type addressCase struct {
	node, service string
	flags         Flags
	src, dest     bool // whether an Info must have a SrcAddr, a DestAddr
}

func TestGetInfoAddresses(t *testing.T) {
	cases := map[string]addressCase{
		"nothing":             {src: true},
		"local node":          {node: "127.0.0.1", flags: FlagSource, src: true},
		"local service":       {service: "7471", flags: FlagSource, src: true},
		"local node, service": {node: "127.0.0.1", service: "7471", flags: FlagSource, src: true},
		"a peer":              {node: "127.0.0.1", service: "7471", src: true, dest: true},
		"a peer by address":   {node: "127.0.0.1", service: "7471", flags: FlagNumericHost, src: true, dest: true},
	}
	eachOffer(t, func(t *testing.T, o offer) {
		for name, c := range cases {
			t.Run(name, func(t *testing.T) {
				for _, hints := range []*Info{nil, o.hints()} {
					infos, err := GetInfo(HeaderVersion, c.node, c.service, c.flags, hints)
					require.NoError(t, err)
					found := 0
					for _, i := range infos {
						if i.Fabric.ProvName != o.prov {
							if hints != nil { // the hints also accept a utility provider on top of o.prov
								require.Contains(t, i.Fabric.ProvName, o.prov+";")
							}
							continue
						}
						found++
						// Without arguments shm returns this process as the peer.
						itself := o.named && c == (addressCase{src: true})
						require.Equal(t, c.dest || itself, len(i.DestAddr) > 0)
						require.NotEqual(t, FormatUnspec, i.AddrFormat)
						require.NotEmpty(t, i.Domain.Name)
						require.NotEmpty(t, i.Fabric.Name)
						require.Contains(t, o.types, i.EP.Type)
						if c.node != "" || c.service != "" {
							require.Equal(t, c.src, len(i.SrcAddr) > 0)
						}
					}
					require.NotZero(t, found)
				}
			})
		}
	})
}

func TestGetInfoRefuses(t *testing.T) {
	eachOffer(t, func(t *testing.T, o offer) {
		for name, call := range map[string]func() ([]*Info, error){
			"a local address that is none": func() ([]*Info, error) {
				return GetInfo(HeaderVersion, "", "", FlagSource, o.hints())
			},
			"a provider that is none": func() ([]*Info, error) {
				h := o.hints()
				h.Fabric.ProvName = "nosuch"
				return GetInfo(HeaderVersion, "", "", 0, h)
			},
			"a name where an address must be": func() ([]*Info, error) {
				if o.named {
					return nil, ErrNoData
				}
				return GetInfo(HeaderVersion, "nosuch.invalid", "", FlagNumericHost, o.hints())
			},
			"a message larger than any": func() ([]*Info, error) {
				h := o.hints()
				h.Tx.InjectSize = 1 << 40
				return GetInfo(HeaderVersion, "", "", 0, h)
			},
		} {
			t.Run(name, func(t *testing.T) {
				infos, err := call()
				require.ErrorIs(t, err, ErrNoData)
				require.Empty(t, infos)
			})
		}
	})
	_, err := GetInfo(MakeVersion(99, 0), "", "", 0, nil)
	require.Error(t, err, "the library is older")
}

func TestGetInfoTypes(t *testing.T) {
	eachOffer(t, func(t *testing.T, o offer) {
		for _, typ := range []EPType{EPMsg, EPDgram, EPRDM} {
			h := o.hints()
			h.EP.Type = typ
			infos, err := GetInfo(HeaderVersion, "", "", 0, h)
			if !slices.Contains(o.types, typ) {
				require.ErrorIs(t, err, ErrNoData, typ)
				continue
			}
			require.NoError(t, err, typ)
			for _, i := range infos {
				require.Equal(t, typ, i.EP.Type)
				require.True(t, strings.HasPrefix(i.Fabric.ProvName, o.prov))
				require.Equal(t, HeaderVersion, i.Fabric.APIVersion)
				require.NotZero(t, i.Fabric.ProvVersion)
			}
		}
	})
}

func TestGetInfoProgress(t *testing.T) {
	eachOffer(t, func(t *testing.T, o offer) {
		for _, p := range both {
			data := o.hints()
			data.Domain.DataProgress = p
			data.EP.Type = o.types[0]
			infos, err := GetInfo(HeaderVersion, "", "", 0, data)
			expectProgress(t, infos, err, slices.Contains(o.progress, p), func(i *Info) bool { return i.Domain.DataProgress == p })

			control := o.hints() // providers of 2.x ignore it
			control.Domain.ControlProgress = p
			control.EP.Type = o.types[0]
			infos, err = GetInfo(HeaderVersion, "", "", 0, control)
			expectProgress(t, infos, err, slices.Contains(o.control, p), func(i *Info) bool { return v2 || i.Domain.ControlProgress == p })
		}
	})
}

func expectProgress(t *testing.T, infos []*Info, err error, offered bool, fits func(*Info) bool) {
	t.Helper()
	if !offered {
		require.ErrorIs(t, err, ErrNoData)
		return
	}
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(infos, fits))
}

// TestGetInfoCaps checks that a provider that offers a capability without hints also offers it if
// the hints request only that capability.
func TestGetInfoCaps(t *testing.T) {
	eachOffer(t, func(t *testing.T, o offer) {
		all := o.info(t)
		require.NotZero(t, all.Caps&CapMsg)
		for bit := Caps(1); bit != 0; bit <<= 1 {
			if all.Caps&bit == 0 {
				continue
			}
			if v2 && bit == CapRemoteComm && strings.Contains(o.prov, ";") {
				continue // utility providers of 2.x offer it only without hints
			}
			h := o.hints()
			h.Caps = bit
			h.EP.Type = all.EP.Type
			infos, err := GetInfo(HeaderVersion, "", "", 0, h)
			require.NoError(t, err, bit)
			for _, i := range infos {
				require.Equal(t, bit, i.Caps&bit)
			}
		}
		for bit := OrderRAR; bit <= OrderSAS; bit <<= 1 {
			for _, order := range []struct{ has, field func(*Info) *MsgOrder }{
				{func(i *Info) *MsgOrder { return &i.Tx.MsgOrder }, func(i *Info) *MsgOrder { return &i.Tx.MsgOrder }},
				{func(i *Info) *MsgOrder { return &i.Rx.MsgOrder }, func(i *Info) *MsgOrder { return &i.Rx.MsgOrder }},
			} {
				if *order.has(all)&bit == 0 {
					continue
				}
				h := o.hints()
				h.EP.Type = all.EP.Type
				*order.field(h) = bit
				infos, err := GetInfo(HeaderVersion, "", "", 0, h)
				require.NoError(t, err, bit)
				require.Equal(t, bit, *order.has(infos[0])&bit)
			}
		}
	})
}

// TestGetInfoMRModes checks that a provider requires no bits of MRMode that the hints lack.
func TestGetInfoMRModes(t *testing.T) {
	eachOffer(t, func(t *testing.T, o offer) {
		offered := 0
		for promise := MRMode(0); promise <= MREndpoint; promise += MRLocal {
			h := o.hints()
			h.Domain.MRMode = promise
			infos, err := GetInfo(HeaderVersion, "", "", 0, h)
			if err != nil {
				require.ErrorIs(t, err, ErrNoData)
				continue
			}
			offered++
			for _, i := range infos {
				require.Zero(t, i.Domain.MRMode&^promise, i.Domain.MRMode)
			}
		}
		require.NotZero(t, offered)
		for _, old := range []MRMode{MRBasic, MRScalable} {
			for _, version := range []Version{HeaderVersion, MakeVersion(1, 4)} {
				h := o.hints()
				h.Domain.MRMode = old
				infos, err := GetInfo(version, "", "", 0, h)
				require.NoError(t, err, old)
				for _, i := range infos {
					require.Equal(t, old, i.Domain.MRMode)
				}
			}
		}
	})
}

// TestGetInfoOfResult checks that an Info that GetInfo returned can be the hints of the next call.
// Hints with its Caps and only the oldest bits of MRMode must be accepted, too.
func TestGetInfoOfResult(t *testing.T) {
	eachOffer(t, func(t *testing.T, o offer) {
		first := o.info(t)
		infos, err := GetInfo(HeaderVersion, "", "", 0, first)
		require.NoError(t, err)
		require.Equal(t, first.Domain.Name, infos[0].Domain.Name)
		require.Equal(t, first.SrcAddr, infos[0].SrcAddr)

		h := o.hints()
		h.Caps = first.Caps
		h.Mode = ModeContext
		h.Domain.MRMode = MRLocal | MRVirtAddr | MRAllocated | MRProvKey
		_, err = GetInfo(HeaderVersion, "", "", 0, h)
		require.NoError(t, err)
	})
}

// TestGetInfoOfOpen passes an open fabric and an open domain in the hints. GetInfo must return only
// Infos of these.
func TestGetInfoOfOpen(t *testing.T) {
	eachOffer(t, func(t *testing.T, o offer) {
		info, f, d := o.open(t)
		h := info.Dup()
		h.Fabric.Fabric = f
		h.Domain.Domain = d
		infos, err := GetInfo(HeaderVersion, "", "", 0, h)
		require.NoError(t, err)
		for _, i := range infos {
			require.Equal(t, info.Fabric.Name, i.Fabric.Name)
			require.Equal(t, info.Domain.Name, i.Domain.Name)
		}
		require.NoError(t, d.Close())
		require.NoError(t, f.Close())
		_, err = GetInfo(HeaderVersion, "", "", 0, h)
		require.NoError(t, err, "closed objects are ignored in hints")
	})
}

func TestInfoString(t *testing.T) {
	eachOffer(t, func(t *testing.T, o offer) {
		text := o.info(t).String()
		for _, part := range []string{"fi_info:", "prov_name: " + o.prov + "\n", "fi_tx_attr:", "fi_rx_attr:", "fi_domain_attr:", "nic:"} {
			require.Contains(t, text, part)
		}
		require.Contains(t, text, "type: "+o.types[0].String())
		require.Greater(t, strings.Count(text, "\n"), 70)
	})
	var none *Info
	require.Equal(t, "<nil>", none.String())
}
