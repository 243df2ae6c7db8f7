package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// Serve runs an agent. It waits for the parent's Launch, calls mk to make the Config (Serve sets
// Launch and Up in it), and runs the node until gorun sends Bye. If mk fails, Serve reports this
// host as failed in Up, and returns the error. If the parent is lost or ctx ends, Serve ends the
// ranks here and below, and returns an error with the reason. Serve closes the parent's stream
// before it returns.
func Serve(ctx context.Context, parent Stream, mk func(l proto.Launch) (Config, error)) error {
	g, c := newFileFlowControl(), new(counters)
	l, err := readLaunch(ctx, parent, c)
	if err != nil {
		_ = parent.Close() // an error of Close would add nothing to err
		return err
	}
	up := newLink(parent, l, g, c)
	g.opened = up.signal
	var node atomic.Pointer[Node]
	ended := make(chan struct{})
	up.got = func(m proto.Message) {
		n := node.Load()
		if n == nil {
			return // mk has failed, and Serve is about to send Bye
		}
		_, file := m.(proto.FilePart)
		if file {
			g.add(1)
		}
		n.call(func() {
			if file {
				defer g.add(-1)
			}
			if up.done() {
				return
			}
			if err := n.down(m); err != nil {
				up.fail(err)
			}
		})
	}
	up.ended = func(err error) {
		if n := node.Load(); n != nil {
			n.post(func() { n.parentLost(fmt.Errorf("connection with gorun: %w", err)) })
		}
		close(ended)
	}
	cfg, err := mk(l)
	if err == nil {
		cfg.Launch = l
		cfg.Up = up.send
		var n *Node
		if n, err = newNode(cfg, up, g, c); err == nil {
			node.Store(n)
		}
	}
	if err != nil {
		up.send(proto.Up{Failed: []proto.HostError{{Index: l.Index, Cause: err.Error()}}})
	}
	up.start()
	if n := node.Load(); n != nil {
		stop := context.AfterFunc(ctx, func() { n.post(func() { n.end(context.Cause(ctx), n.grace) }) })
		<-n.done
		stop()
		err = n.cause
	}
	up.send(proto.Bye{})
	late := time.AfterFunc(byeLimit, func() { up.fail(errNoBye) })
	<-ended // when the parent closes the stream, or after byeLimit
	late.Stop()
	return err
}

// readLaunch reads the first message, which must be Launch. It waits at most launchLimit.
func readLaunch(ctx context.Context, parent Stream, c *counters) (proto.Launch, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, launchLimit, errors.New("gorun sent no job"))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = parent.Close() }) // unblocks Read
	defer stop()
	m, err := proto.Read(counted{parent, &c.bytesIn})
	c.in.Add(1)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		} else if cause := parent.Cause(); cause != nil {
			err = cause
		}
		return proto.Launch{}, fmt.Errorf("connection with gorun: %w", err)
	}
	l, ok := m.(proto.Launch)
	if !ok || l.Index < 0 {
		return proto.Launch{}, fmt.Errorf("%w: the first message is %T", proto.ErrFrame, m)
	}
	return normalize(l)
}

// counted is a Reader that adds the number of bytes read to n.
type counted struct {
	io.Reader
	n *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}
