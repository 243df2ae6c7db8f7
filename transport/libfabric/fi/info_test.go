//go:build libfabric

package fi

import (
	"math"
	"reflect"
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// fill sets every exported field in v to a different value. *n is the number of fields so far, from
// which fill makes the values.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), n)
			}
		}
	case reflect.String:
		v.SetString(v.Type().Name() + string(rune('a'+*n%26)))
	case reflect.Slice:
		v.SetBytes([]byte{byte(*n), 0, 7})
	case reflect.Int:
		v.SetInt(int64(*n))
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n))
	}
}

// filled returns an Info in which every field is set, except those that the headers of this build
// lack.
func filled() *Info {
	i := NewInfo()
	n := 0
	fill(reflect.ValueOf(i).Elem(), &n)
	if HeaderVersion < MakeVersion(1, 20) {
		i.Domain.MaxEPAuthKey = 0
	}
	if HeaderVersion < MakeVersion(2, 0) {
		i.Domain.MaxGroupID = 0
	}
	if HeaderVersion < MakeVersion(2, 5) {
		i.Domain.MaxCntrValue, i.Domain.MaxErrCntrValue = 0, 0
	}
	if HeaderVersion < MakeVersion(2, 6) {
		i.Domain.MaxXPUCtxCnt = 0
	}
	return i
}

// same requires that want and got have equal fields, except the C structure in Info.raw.
func same(t *testing.T, want, got *Info) {
	t.Helper()
	w, g := *want, *got
	w.raw, g.raw = nil, nil
	require.Equal(t, w, g)
}

func TestNewInfo(t *testing.T) {
	same(t, &Info{}, NewInfo())
	same(t, &Info{}, new(Info).Dup())
}

// TestInfoRoundTrip checks that every field is converted to C and back, also if the C structure had
// another value before.
func TestInfoRoundTrip(t *testing.T) {
	want := filled()
	same(t, want, want.Dup())

	again := want.Dup()
	other := want.Dup()
	n := 500
	fill(reflect.ValueOf(other).Elem(), &n)
	other.Domain.MaxEPAuthKey, other.Domain.MaxGroupID = want.Domain.MaxEPAuthKey, want.Domain.MaxGroupID
	other.Domain.MaxCntrValue, other.Domain.MaxErrCntrValue = want.Domain.MaxCntrValue, want.Domain.MaxErrCntrValue
	other.Domain.MaxXPUCtxCnt = want.Domain.MaxXPUCtxCnt
	same(t, other, other.Dup())
	same(t, want, again)

	raw := again.raw
	*again = Info{raw: raw}
	same(t, &Info{}, again.Dup())
}

func TestInfoMadeByHand(t *testing.T) {
	i := filled()
	i.raw = nil
	same(t, i, i.Dup())
}

// TestInfoCopy copies Infos by value. A copy shares the C structure, which must live as long as the
// copy.
func TestInfoCopy(t *testing.T) {
	copies := make([]Info, 0, 100)
	for range cap(copies) {
		copies = append(copies, *filled().Dup())
	}
	for range 3 {
		runtime.GC()
	}
	want := filled()
	for i := range copies {
		same(t, want, copies[i].Dup())
	}
}

func TestInfoSizes(t *testing.T) {
	i := NewInfo()
	i.EP.MaxMsgSize = math.MaxInt
	i.EP.TxCtxCnt = SharedContext
	same(t, i, i.Dup())
	require.Contains(t, i.String(), "max_msg_size: 18446744073709551615\n")
	require.Contains(t, i.String(), "tx_ctx_cnt: FI_SHARED_CONTEXT\n")

	n := sizeOf(setSize)
	*n = math.MaxInt
	setSize(n, math.MaxInt)
	require.EqualValues(t, uint64(math.MaxInt), *n, "the largest int does not become SIZE_MAX")
}

// sizeOf and argOf allocate a value of the C type that the parameter of a function points to,
// because tests cannot import C.
func sizeOf[T, N any](func(*T, N)) *T { return new(T) }

func argOf[T, R any](func(*T) R) *T { return new(T) }

func at[T any](p **T) *T {
	*p = new(T)
	return *p
}

func TestInfoAuthKeyByAV(t *testing.T) {
	i := NewInfo()
	i.Domain.AuthKeyByAV = true
	dup := i.Dup()
	same(t, i, dup)
	dup.Domain.AuthKeyByAV = false
	dup.Domain.AuthKey = []byte("secret")
	same(t, dup, dup.Dup())
	dup.Domain.AuthKeyByAV = true
	require.Nil(t, dup.Dup().Domain.AuthKey, "there is either a key or AuthKeyByAV")
}

func TestInfoRequest(t *testing.T) {
	var object [64]byte
	i := NewInfo()
	require.False(t, i.HasRequest())
	i.request = &request{handle: unsafe.Pointer(&object)}
	var pins runtime.Pinner
	defer pins.Unpin()
	pins.Pin(&object)
	dup := i.Dup().Dup()
	require.True(t, dup.HasRequest())
	i.request.end()
	require.False(t, dup.HasRequest())
}

// TestNIC checks that readNIC converts C's description of a device.
func TestNIC(t *testing.T) {
	require.Nil(t, NewInfo().NIC)
	require.Equal(t, &NIC{}, readNIC(argOf(readNIC)))

	c := argOf(readNIC)
	name, free := optional("mlx5_0")
	defer free()
	address, free := optional("fe80::1")
	defer free()
	at(&c.device_attr).name = name
	bus := at(&c.bus_attr)
	bus.bus_type = 1
	copy(bus.attr[:], []byte{1, 0, 0x5e, 2, 3})
	link := at(&c.link_attr)
	link.address = address
	link.mtu = 4096
	link.speed = 100e9
	link.state = 2
	n := readNIC(c)
	require.Equal(t, &NIC{
		Device: DeviceAttr{Name: "mlx5_0"},
		Bus:    BusAttr{Type: BusPCI, DomainID: 1, BusID: 0x5e, DeviceID: 2, FunctionID: 3},
		Link:   LinkAttr{Address: "fe80::1", MTU: 4096, Speed: 100e9, State: LinkUp},
	}, n)
	require.Equal(t, "FI_BUS_PCI", n.Bus.Type.String())
	require.Equal(t, "FI_LINK_UP", n.Link.State.String())
	require.Equal(t, "FI_LINK_DOWN", LinkDown.String())
}
