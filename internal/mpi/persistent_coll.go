package mpi

import (
	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
)

// BarrierInit implements comm.Comm.BarrierInit, which documents the call.
func (c *Comm) BarrierInit() (*Persistent, error) {
	return c.persist("BarrierInit", func(c *Comm) (*link, error) { return barrier(c, "BarrierInit", coll.KindBarrier) })
}

// BcastInit implements comm.BcastInit, which documents the call.
func (c *Comm) BcastInit(b elem.Buffer, root int) (*Persistent, error) {
	return c.persist("BcastInit", func(c *Comm) (*link, error) { return c.bcast("BcastInit", b, root) })
}

// GatherInit implements comm.GatherInit, which documents the call.
func (c *Comm) GatherInit(send, recv elem.Buffer, root int) (*Persistent, error) {
	return c.persist("GatherInit", func(c *Comm) (*link, error) { return c.gather("GatherInit", send, recv, root) })
}

// GathervInit implements comm.GathervInit, which documents the call.
func (c *Comm) GathervInit(send, recv elem.Buffer, counts, displs []int, root int) (*Persistent, error) {
	return c.persist("GathervInit", func(c *Comm) (*link, error) {
		return c.gatherv("GathervInit", send, recv, counts, displs, root)
	})
}

// ScatterInit implements comm.ScatterInit, which documents the call.
func (c *Comm) ScatterInit(send, recv elem.Buffer, root int) (*Persistent, error) {
	return c.persist("ScatterInit", func(c *Comm) (*link, error) { return c.scatter("ScatterInit", send, recv, root) })
}

// ScattervInit implements comm.ScattervInit, which documents the call.
func (c *Comm) ScattervInit(send elem.Buffer, counts, displs []int, recv elem.Buffer, root int) (*Persistent, error) {
	return c.persist("ScattervInit", func(c *Comm) (*link, error) {
		return c.scatterv("ScattervInit", send, counts, displs, recv, root)
	})
}

// AllgatherInit implements comm.AllgatherInit, which documents the call.
func (c *Comm) AllgatherInit(send, recv elem.Buffer) (*Persistent, error) {
	return c.persist("AllgatherInit", func(c *Comm) (*link, error) { return c.allgather("AllgatherInit", send, recv) })
}

// AllgathervInit implements comm.AllgathervInit, which documents the call.
func (c *Comm) AllgathervInit(send, recv elem.Buffer, counts, displs []int) (*Persistent, error) {
	return c.persist("AllgathervInit", func(c *Comm) (*link, error) {
		return c.allgatherv("AllgathervInit", send, recv, counts, displs)
	})
}

// AlltoallInit implements comm.AlltoallInit, which documents the call.
func (c *Comm) AlltoallInit(send, recv elem.Buffer) (*Persistent, error) {
	return c.persist("AlltoallInit", func(c *Comm) (*link, error) { return c.alltoall("AlltoallInit", send, recv) })
}

// AlltoallvInit implements comm.AlltoallvInit, which documents the call.
func (c *Comm) AlltoallvInit(send elem.Buffer, sendcounts, senddispls []int, recv elem.Buffer, recvcounts, recvdispls []int) (*Persistent, error) {
	return c.persist("AlltoallvInit", func(c *Comm) (*link, error) {
		return c.alltoallv("AlltoallvInit", send, sendcounts, senddispls, recv, recvcounts, recvdispls)
	})
}

// GatherViewInit implements comm.GatherViewInit, which documents the call.
func (c *Comm) GatherViewInit(send elem.Buffer, recv []elem.Buffer, root int) (*Persistent, error) {
	return c.persist("GatherViewInit", func(c *Comm) (*link, error) { return c.gatherView("GatherViewInit", send, recv, root) })
}

// ScatterViewInit implements comm.ScatterViewInit, which documents the call.
func (c *Comm) ScatterViewInit(send []elem.Buffer, recv elem.Buffer, root int) (*Persistent, error) {
	return c.persist("ScatterViewInit", func(c *Comm) (*link, error) { return c.scatterView("ScatterViewInit", send, recv, root) })
}

// AllgatherViewInit implements comm.AllgatherViewInit, which documents the call.
func (c *Comm) AllgatherViewInit(send elem.Buffer, recv []elem.Buffer) (*Persistent, error) {
	return c.persist("AllgatherViewInit", func(c *Comm) (*link, error) { return c.allgatherView("AllgatherViewInit", send, recv) })
}

// AlltoallViewInit implements comm.AlltoallViewInit, which documents the call.
func (c *Comm) AlltoallViewInit(send, recv []elem.Buffer) (*Persistent, error) {
	return c.persist("AlltoallViewInit", func(c *Comm) (*link, error) { return c.alltoallView("AlltoallViewInit", send, recv) })
}

// ReduceInit implements comm.ReduceInit, which documents the call.
func (c *Comm) ReduceInit(send, recv elem.Buffer, op *Op, root int) (*Persistent, error) {
	return c.persist("ReduceInit", func(c *Comm) (*link, error) {
		return c.reduce("ReduceInit", coll.KindReduce, send, recv, op, root)
	})
}

// AllreduceInit implements comm.AllreduceInit, which documents the call.
func (c *Comm) AllreduceInit(send, recv elem.Buffer, op *Op) (*Persistent, error) {
	return c.persist("AllreduceInit", func(c *Comm) (*link, error) {
		return c.reduce("AllreduceInit", coll.KindAllreduce, send, recv, op, 0)
	})
}

// ScanInit implements comm.ScanInit, which documents the call.
func (c *Comm) ScanInit(send, recv elem.Buffer, op *Op) (*Persistent, error) {
	return c.persist("ScanInit", func(c *Comm) (*link, error) {
		return c.reduce("ScanInit", coll.KindScan, send, recv, op, 0)
	})
}

// ExscanInit implements comm.ExscanInit, which documents the call.
func (c *Comm) ExscanInit(send, recv elem.Buffer, op *Op) (*Persistent, error) {
	return c.persist("ExscanInit", func(c *Comm) (*link, error) {
		return c.reduce("ExscanInit", coll.KindExscan, send, recv, op, 0)
	})
}

// ReduceScatterBlockInit implements comm.ReduceScatterBlockInit, which documents the call.
func (c *Comm) ReduceScatterBlockInit(send, recv elem.Buffer, op *Op) (*Persistent, error) {
	return c.persist("ReduceScatterBlockInit", func(c *Comm) (*link, error) {
		return c.reduceScatterBlock("ReduceScatterBlockInit", send, recv, op)
	})
}

// ReduceScatterInit implements comm.ReduceScatterInit, which documents the call.
func (c *Comm) ReduceScatterInit(send, recv elem.Buffer, counts []int, op *Op) (*Persistent, error) {
	return c.persist("ReduceScatterInit", func(c *Comm) (*link, error) {
		return c.reduceScatter("ReduceScatterInit", send, recv, counts, op)
	})
}
