package mpi

import "github.com/weft-hpc/weft/internal/elem"

// Put is comm.Win.Put.
//
// Hot path: no allocation in steady state.
func (x *Win) Put(buf elem.Buffer, target, disp int) error {
	at, err := x.checkElements(buf.Count, target, disp)
	if err == nil && target != ProcNull {
		err = x.win.Put(x.c.ctx, target, at, buf.Bytes())
	}
	if err != nil {
		return x.fail("Put", target, err)
	}
	return nil
}

// RPut is comm.Win.RPut.
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

// Get is comm.Win.Get.
//
// Hot path: no allocation in steady state.
func (x *Win) Get(buf elem.Buffer, target, disp int) error {
	at, err := x.checkElements(buf.Count, target, disp)
	if err == nil && target != ProcNull {
		err = x.win.Get(x.c.ctx, target, at, buf.Bytes())
	}
	if err != nil {
		return x.fail("Get", target, err)
	}
	return nil
}

// RGet is comm.Win.RGet.
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
