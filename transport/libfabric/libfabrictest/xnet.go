//go:build libfabric

package libfabrictest

import (
	"sync"

	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// XNet returns the name of the provider that has reliable connectionless endpoints over TCP by
// itself (FI_PROTO_XNET): net in libfabric 1.x, tcp in 2.x. It calls [MustLoad] first, because it
// calls libfabric. It panics if libfabric has no such provider.
var XNet = sync.OnceValue(func() string {
	MustLoad()
	hints := fi.NewInfo()
	hints.EP.Type, hints.EP.Protocol = fi.EPRDM, fi.ProtoXNet
	hints.Mode, hints.Domain.MRMode = ^fi.Mode(0), ^(fi.MRBasic | fi.MRScalable)
	infos, err := fi.GetInfo(fi.HeaderVersion, "", "", 0, hints)
	if err != nil {
		panic(err)
	}
	return infos[0].Fabric.ProvName
})
