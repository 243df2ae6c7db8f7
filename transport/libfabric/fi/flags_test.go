//go:build libfabric

package fi

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStrings(t *testing.T) {
	for want, v := range map[string]fmt.Stringer{
		"FI_COMPLETION, FI_INJECT":           FlagCompletion | FlagInject,
		"FI_DELIVERY_COMPLETE":               FlagDeliveryComplete,
		"FI_MSG, FI_TAGGED, FI_REMOTE_READ":  CapMsg | CapTagged | CapRemoteRead,
		"FI_DIRECTED_RECV, FI_HMEM":          CapDirectedRecv | CapHMEM,
		"FI_CONTEXT, FI_MSG_PREFIX":          ModeContext | ModeMsgPrefix,
		"FI_MR_LOCAL, FI_MR_PROV_KEY":        MRLocal | MRProvKey,
		"FI_READ, FI_WRITE, FI_REMOTE_WRITE": AccessRead | AccessWrite | AccessRemoteWrite,
		"FI_ORDER_RAW, FI_ORDER_SAS":         OrderRAW | OrderSAS,
		"FI_ORDER_STRICT, FI_ORDER_DATA":     CompOrderStrict | CompOrderData,
		"FI_ORDER_NONE":                      CompOrderNone,
		"FI_THREAD_DOMAIN":                   ThreadDomain,
		"FI_PROGRESS_MANUAL":                 ProgressManual,
		"FI_RM_ENABLED":                      RMEnabled,
		"FI_AV_TABLE":                        AVTable,
		"FI_EP_RDM":                          EPRDM,
		"FI_ADDR_STR":                        AddrStr,
		"FI_SOCKADDR_IN6":                    SockaddrIn6,
		"FI_PROTO_SHM":                       ProtoSHM,
		"FI_PROTO_XNET":                      ProtoXNet,
		"FI_TC_UNSPEC":                       TClassUnspec,
		"FI_TC_BEST_EFFORT":                  TClassBestEffort,
		"FI_TC_NETWORK_CTRL":                 TClassNetworkCtrl,
		"FI_TC_DSCP(46)":                     MakeDSCP(46),
		"FI_WAIT_FD":                         WaitFD,
		"FI_WAIT_POLLFD":                     WaitPollFD,
		"FI_CQ_FORMAT_TAGGED":                CQTagged,
		"FI_HMEM_CUDA":                       HMEMCUDA,
		"FI_ALLREDUCE":                       CollAllreduce,
		"FI_CONNREQ":                         EventConnReq,
		"Unknown":                            Threading(99),
		"fid:0x0":                            FID{},
		"core":                               ProviderCore,
		"1.17":                               MakeVersion(1, 17),
	} {
		require.Equal(t, want, v.String(), "%T", v)
	}
	require.Equal(t, "Unknown", ResourceMgmt(-1).String())
	require.Equal(t, "Unknown", WaitObj(99).String())
	require.Equal(t, "Unknown", TClass(7).String())
	require.Equal(t, "FI_RECV, FI_TAGGED", (FlagRecv | FlagTagged).CQString())
	require.EqualValues(t, 46, MakeDSCP(46).DSCP())
	require.Zero(t, TClassBulkData.DSCP())
}

// TestVersionedBits checks that constants that only 1.x or only 2.x has are zero with the headers
// of the other.
func TestVersionedBits(t *testing.T) {
	old := HeaderVersion < MakeVersion(2, 0)
	require.Equal(t, old, CapVariableMsg != 0)
	require.Equal(t, old, ModeBufferedRecv != 0)
	require.Equal(t, old, FlagMRDMABuf == 0)
	require.Equal(t, old, CapExactDirectedRecv == 0)
	require.NotZero(t, MRBasic)
	require.NotEqual(t, ProgressManual, ProgressControlUnified)
	require.GreaterOrEqual(t, LibraryVersion(), HeaderVersion)
}
