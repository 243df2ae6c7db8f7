//go:build libfabric

package libfabric

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// lane holds the libfabric objects with which a rank uses one of its NICs (adapters or interfaces). A
// rank with several NICs has a main lane, which carries all messages, and further ones for parts of
// large reads and writes (stripe.go).
type lane struct {
	info   *fi.Info
	fabric *fi.Fabric
	fid    *fi.Domain
	ficq   *fi.CQ
	hasFD  bool // the completion queue has a file descriptor, and domain.epfd watches it
	fiep   *fi.Endpoint
	raw    *fi.Raw
	av     *addressVector // the address vector that the endpoint is bound to; nil: none yet
	// contexts is the address of slotCount structs fi_context2, one for each [slot]. In the main lane they
	// are those of the arena, and mem is nil.
	contexts uintptr
	mem      []byte // has the contexts
	parts    uint64 // number of parts that were posted, except in the main lane
}

// open opens the libfabric objects of a lane of d, except its address vector. After an error the caller
// must call close. recvs is the number of receives that the lane posts at the same time.
func (l *lane) open(d *domain, recvs int) error {
	var err error
	if l.fabric, err = fi.OpenFabric(l.info); err != nil {
		return err
	}
	if l.fid, err = l.fabric.OpenDomain(l.info); err != nil {
		return err
	}
	if err = l.openCQ(d); err != nil {
		return err
	}
	if err = l.openEndpoint(d); err != nil {
		return err
	}
	l.raw, err = fi.NewRaw(l.fabric, l.fid, l.fiep, l.ficq, batch, recvs, d.mrMode&fi.MREndpoint != 0)
	return err
}

// openCQ opens the completion queue, with a file descriptor for waiting (FI_WAIT_FD) if the
// provider supports that and is not net.
func (l *lane) openCQ(d *domain) error {
	attr := fi.CQAttr{Size: l.queueSize(), Format: fi.CQData, Wait: fi.WaitFD}
	// In libfabric 1.17 the descriptor of net stays readable after the first completion.
	if l.info.Fabric.ProvName != "net" {
		if q, err := l.fid.OpenCQ(attr); err == nil {
			l.ficq = q
			if fd, err := q.FD(); err == nil {
				l.hasFD = true
				return d.watch(fd)
			}
			if err := q.Close(); err != nil {
				return err
			}
		}
	}
	attr.Wait = fi.WaitNone
	q, err := l.fid.OpenCQ(attr)
	if err == nil {
		l.ficq = q
	}
	return err
}

// queueSize returns the size of the completion queue: one place for each operation and for each
// receive that the provider has room for. A multi-receive buffer takes more messages than one, so
// the queue has minQueueSize places at least.
func (l *lane) queueSize() int {
	return min(max(l.info.Tx.Size+l.info.Rx.Size, minQueueSize), maxQueueSize)
}

// openEndpoint opens the endpoint. If the endpoint must have a certain address (domain.at) whose port
// is in use, openEndpoint tries again for bindTimeout.
func (l *lane) openEndpoint(d *domain) error {
	for end := time.Now().Add(bindTimeout); ; time.Sleep(20 * time.Millisecond) {
		ep, err := l.fid.OpenEndpoint(l.info)
		if err == nil {
			l.fiep = ep
			return nil
		}
		if !d.at.IsValid() || !errors.Is(err, fi.ErrAddrInUse) || time.Now().After(end) {
			return d.explainInUse(err)
		}
	}
}

// hmemP2P are the values of transport.libfabric.hmem_p2p.
var hmemP2P = map[string]int{
	"enabled": fi.HMEMP2PEnabled, "preferred": fi.HMEMP2PPreferred, "required": fi.HMEMP2PRequired, "disabled": fi.HMEMP2PDisabled,
}

// enable binds the endpoint to v and to the completion queue, and enables it.
func (l *lane) enable(d *domain, v *addressVector) error {
	if err := l.fiep.BindAV(v.av); err != nil {
		return err
	}
	l.av = v
	if p2p := d.cfg.Params.String("transport.libfabric.hmem_p2p"); p2p != "default" {
		if err := l.fiep.SetOpt(fi.OptHMEMP2P, hmemP2P[p2p]); err != nil {
			return fmt.Errorf("%s on %s: FI_OPT_FI_HMEM_P2P = %s: %w", d.attr.Provider, l.info.Domain.Name, p2p, err)
		}
	}
	if err := l.fiep.BindCQ(l.ficq, fi.FlagTransmit|fi.FlagRecv); err != nil {
		return err
	}
	return d.explainInUse(l.fiep.Enable())
}

// explainInUse adds to err that the endpoint must have the address domain.at, if that address is in use.
func (d *domain) explainInUse(err error) error {
	if d.at.IsValid() && errors.Is(err, fi.ErrAddrInUse) {
		return fmt.Errorf("%s was promised to this rank and is in use: %w", d.at, err)
	}
	return err
}

// name returns the address of the endpoint, which is enabled.
func (l *lane) name() (transport.Address, error) {
	at, err := l.fiep.Name()
	if err != nil {
		return "", err
	}
	return decode(l.info.AddrFormat, at)
}

// closeEndpoint closes the endpoint if it is open. If the endpoint is bound to no address vector,
// closeEndpoint binds it to one first, because rxm of libfabric 1.17 otherwise dereferences a
// null pointer.
func (l *lane) closeEndpoint(d *domain) error {
	if l.fiep == nil {
		return nil
	}
	if l.av == nil {
		av, err := l.fid.OpenAV(fi.AVAttr{Type: d.avType(), Count: 1})
		if err != nil {
			return err
		}
		d.avs = append(d.avs, &addressVector{d: d, av: av})
		if err := l.fiep.BindAV(av); err != nil {
			return err
		}
	}
	return l.fiep.Close()
}

// close closes what is open after closeEndpoint and after the address vectors are closed.
func (l *lane) close() error {
	var errs []error
	if l.ficq != nil {
		errs = append(errs, l.ficq.Close())
	}
	if l.fid != nil {
		errs = append(errs, l.fid.Close())
	}
	if l.fabric != nil {
		errs = append(errs, l.fabric.Close())
	}
	return errors.Join(errs...)
}

// release frees the memory of the lane, whose libfabric objects are all closed.
func (l *lane) release() {
	l.raw.Close()
	if l.mem != nil {
		_ = unix.Munmap(l.mem) // cannot fail: it is a whole mapping
		l.mem = nil
	}
}

// context returns the address of the struct fi_context2 of the [slot] with index i.
func (l *lane) context(i int) uintptr { return l.contexts + uintptr(i)*contextSize }

// slot returns the i for which context returns this address, or -1 if there is none.
func (l *lane) slot(context uintptr) int {
	off := context - l.contexts
	if off >= slotCount*contextSize {
		return -1
	}
	return int(off / contextSize)
}
