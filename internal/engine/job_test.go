package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/inproc/pintest"
	"github.com/weft-hpc/weft/transport/shm"
)

// background is a context that never ends.
var background = context.Background()

// testTimeout is the time after which a test reports a hang.
const testTimeout = time.Minute

// openJob makes the engines of n ranks in this process, which communicate by one provider. set
// holds parameters. The engines are closed when the test ends.
func openJob(t testing.TB, n int, provider transport.Provider, set map[string]string) []*Engine {
	t.Helper()
	return openRails(t, n, set, provider)
}

// openRails makes the engines of n ranks over several providers. The ranks i and j communicate by
// the provider with the index (i+j) mod len(providers).
func openRails(t testing.TB, n int, set map[string]string, providers ...transport.Provider) []*Engine {
	t.Helper()
	return openRouted(t, n, set, func(i, j int) uint8 { return uint8((i + j) % len(providers)) }, providers...)
}

// openRouted makes the engines of n ranks over several providers. The ranks i and j communicate by
// the provider with the index route(i, j).
func openRouted(t testing.TB, n int, set map[string]string, route func(i, j int) uint8, providers ...transport.Provider) []*Engine {
	t.Helper()
	p := &params.Set{}
	for k, v := range set {
		require.NoError(t, p.Set(k, v, params.FromFlag))
	}
	rails := make([][]Rail, n)
	for _, provider := range providers {
		for i, r := range openRail(t, n, p, provider) {
			rails[i] = append(rails[i], r)
		}
	}
	engines := make([]*Engine, n)
	for i := range n {
		routes := make([]uint8, n)
		for j := range routes {
			routes[j] = route(i, j)
		}
		var err error
		engines[i], err = New(Config{Rank: i, Size: n, Params: p, Rails: rails[i], Route: routes, LocalRanks: n})
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(background, 5*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for _, e := range engines {
			wg.Go(func() { _ = e.Close(ctx) })
		}
		wg.Wait()
	})
	return engines
}

func openRail(t testing.TB, n int, p *params.Set, provider transport.Provider) []Rail {
	t.Helper()
	var rails []Rail
	var vectors []transport.AddressVector
	var addrs []transport.Address
	for i := range n {
		d, err := provider.Open(transport.Config{Self: transport.Addr(i), Size: n, JobID: "test", OneHost: true, Params: p})
		require.NoError(t, err)
		cq, err := d.OpenCQ()
		require.NoError(t, err)
		av, err := d.OpenAV()
		require.NoError(t, err)
		ep, err := d.OpenEndpoint(av, cq)
		require.NoError(t, err)
		rails = append(rails, Rail{d, cq, ep})
		vectors = append(vectors, av)
		addrs = append(addrs, ep.Address())
	}
	for _, av := range vectors {
		_, err := av.Insert(addrs)
		require.NoError(t, err)
	}
	return rails
}

// world opens a context with all ranks on every engine. The contexts have the same id.
func world(engines []*Engine) []*Context {
	members := make([]int, len(engines))
	for i := range members {
		members[i] = i
	}
	cs := make([]*Context, len(engines))
	for i, e := range engines {
		cs[i] = e.OpenContext(0, members)
	}
	return cs
}

// ranks runs f for every rank at the same time, and fails the test if f returns an error or hangs.
func ranks(t testing.TB, cs []*Context, f func(c *Context, rank int) error) {
	t.Helper()
	errs := make(chan error, len(cs))
	for i, c := range cs {
		go func() { // ends when f returns; the loop below waits for that
			if err := f(c, i); err != nil {
				errs <- fmt.Errorf("rank %d: %w", i, err)
				return
			}
			errs <- nil
		}()
	}
	deadline := time.After(testTimeout)
	for range cs {
		select {
		case err := <-errs:
			require.NoError(t, err)
		case <-deadline:
			buf := make([]byte, 1<<20)
			t.Fatalf("hang:\n%s", buf[:runtime.Stack(buf, true)])
		}
	}
}

// flavours returns functions that make fabrics and parameters. They differ in the protocols and
// limits that the engine uses.
func flavours() map[string]func() (transport.Provider, map[string]string) {
	return map[string]func() (transport.Provider, map[string]string){
		"default": func() (transport.Provider, map[string]string) { return inproc.NewFabric(), nil },
		"rendezvous": func() (transport.Provider, map[string]string) {
			return inproc.NewFabric(inproc.WithEagerLimit(0)), nil
		},
		"messages only": func() (transport.Provider, map[string]string) {
			return inproc.NewFabric(inproc.WithoutRMA(), inproc.WithMaxMsgSize(4096), inproc.WithEagerLimit(512)), nil
		},
		"some reach": func() (transport.Provider, map[string]string) {
			return inproc.NewFabric(inproc.WithReach(func(from, to transport.Addr) bool { return from < to })), nil
		},
		"shm": func() (transport.Provider, map[string]string) { return shm.New(), nil },
		"shm, no copies": func() (transport.Provider, map[string]string) {
			return shm.New(), map[string]string{"transport.shm.single_copy": "off"}
		},
		"like verbs": func() (transport.Provider, map[string]string) {
			return inproc.NewFabric(inproc.WithMRMode(transport.MRVirtAddr|transport.MRLocal), inproc.WithInjectSize(0),
				inproc.WithMaxRMASize(30000), inproc.WithRMADelay(2), inproc.WithEagerLimit(1024)), nil
		},
		"pins slowly": func() (transport.Provider, map[string]string) {
			f := pintest.New(slowly)
			f.Keeps = true
			return f, nil
		},
		"no room": func() (transport.Provider, map[string]string) {
			return inproc.NewFabric(inproc.WithBacklog(1), inproc.WithInjectSize(100)), nil
		},
		"small window": func() (transport.Provider, map[string]string) {
			return inproc.NewFabric(), map[string]string{"engine.unexpected_limit": "16k"}
		},
		"no async": func() (transport.Provider, map[string]string) {
			return inproc.NewFabric(), map[string]string{"engine.async_progress": "false"}
		},
	}
}

func everyFlavour(t *testing.T, n int, f func(t *testing.T, engines []*Engine, cs []*Context)) {
	for name, make := range flavours() {
		t.Run(name, func(t *testing.T) {
			p, set := make()
			engines := openJob(t, n, p, set)
			f(t, engines, world(engines))
		})
	}
}

func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + seed*13 + i>>8)
	}
	return b
}

func check(got, want []byte) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d bytes instead of %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("byte %d of %d is %d instead of %d", i, len(want), got[i], want[i])
		}
	}
	return nil
}

func wantErr(err, want error) error {
	if !errors.Is(err, want) {
		return fmt.Errorf("error %q instead of %q", fmt.Sprint(err), want.Error())
	}
	return nil
}
