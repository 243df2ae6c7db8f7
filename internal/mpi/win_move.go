package mpi

import "github.com/weft-hpc/weft/internal/elem"

// Put implements comm.Win.Put, which documents the call.
//
// Hot path: no allocation in steady state.
func (x *Win) Put(buf elem.Buffer, target, disp int) error {
	at, err := x.checkElements(buf.Count, target, disp)
	t := x.timing()
	if err == nil && target != ProcNull {
		err = x.win.Put(x.c.ctx, target, at, buf.Bytes())
	}
	if err != nil {
		return x.fail("Put", target, err)
	}
	t.end(opPut, target, noRank, buf.Size())
	return nil
}

// RPut implements comm.Win.RPut, which documents the call.
func (x *Win) RPut(buf elem.Buffer, target, disp int) Request {
	at, err := x.checkElements(buf.Count, target, disp)
	if err != nil {
		return x.refused("RPut", target, err)
	}
	if target == ProcNull {
		return Request{c: completedAtStart}
	}
	r, err := x.win.Rput(x.c.ctx, target, at, buf.Bytes())
	return x.request(opRPut, target, r, err)
}

// Get implements comm.Win.Get, which documents the call.
//
// Hot path: no allocation in steady state.
func (x *Win) Get(buf elem.Buffer, target, disp int) error {
	at, err := x.checkElements(buf.Count, target, disp)
	t := x.timing()
	if err == nil && target != ProcNull {
		err = x.win.Get(x.c.ctx, target, at, buf.Bytes())
	}
	if err != nil {
		return x.fail("Get", target, err)
	}
	t.end(opGet, target, noRank, buf.Size())
	return nil
}

// RGet implements comm.Win.RGet, which documents the call.
func (x *Win) RGet(buf elem.Buffer, target, disp int) Request {
	at, err := x.checkElements(buf.Count, target, disp)
	if err != nil {
		return x.refused("RGet", target, err)
	}
	if target == ProcNull {
		return Request{c: completedAtStart}
	}
	r, err := x.win.Rget(x.c.ctx, target, at, buf.Bytes())
	return x.request(opRGet, target, r, err)
}
