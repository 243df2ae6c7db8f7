package inproc_test

import (
	"testing"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/transporttest"
)

func opener(opts ...inproc.Option) transporttest.Opener {
	open := transporttest.OpenWith(func(testing.TB) (transport.Provider, func(int)) {
		f := inproc.NewFabric(opts...)
		return f, f.Kill
	})
	return func(t testing.TB, n int) *transporttest.Job {
		t.Helper()
		job := open(t, n)
		job.Node, job.Service = "process", "0"
		return job
	}
}

func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name string
		opts []inproc.Option
	}{
		{"default", nil},
		{"eager limit 0", []inproc.Option{inproc.WithEagerLimit(0), inproc.WithMaxMsgSize(64)}},
		{"eager limit huge", []inproc.Option{inproc.WithEagerLimit(1 << 20)}},
		{"sends complete later", []inproc.Option{inproc.WithInjectSize(32), inproc.WithBacklog(16 << 10)}},
		{"delayed reads", []inproc.Option{inproc.WithRMADelay(5)}},
		{"strict registration", []inproc.Option{inproc.WithMRMode(transport.MRVirtAddr | transport.MRLocal)}},
		{"no rma", []inproc.Option{inproc.WithoutRMA()}},
		{"some reach", []inproc.Option{inproc.WithReach(func(from, to transport.Addr) bool { return from < to && to != 2 })}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var opts []transporttest.Option
			if c.opts != nil {
				opts = append(opts, transporttest.WithRanks(1, 2, 3))
			}
			transporttest.Run(t, opener(c.opts...), opts...)
		})
	}
}
