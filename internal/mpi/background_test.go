package mpi_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/internal/mpi"
)

// TestBackground checks the requests of Background: their status and error, by each call that waits.
func TestBackground(t *testing.T) {
	why := errors.New("why")
	ranks(t, 2, func(c *comm.Comm) error {
		in := (*mpi.Comm)(c)
		release := make(chan struct{})
		start := func(err error) comm.Request {
			r, started := in.Background("Iread", 8, func() (int, error) {
				<-release
				return 24, err
			})
			if !started {
				close(release) // fails the test: the requests are complete too early
			}
			return comm.Request(r)
		}
		rs := []comm.Request{start(nil), start(why), start(nil), start(nil)}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := rs[0].WaitContext(ctx); !errors.Is(err, context.Canceled) {
			return fmt.Errorf("the wait has ended with %w", err)
		}
		if _, done, _ := rs[0].Test(); done {
			return errors.New("the request is complete before its function")
		}
		close(release)
		st, err := rs[0].Wait()
		if st.Count != 3 || st.Bytes != 24 || err != nil {
			return fmt.Errorf("%+v, %w", st, err)
		}
		if _, err := rs[1].Wait(); err != why { //nolint:errorlint // it must be the error itself
			return fmt.Errorf("the error is %w", err)
		}
		i, st, err := comm.WaitAny(rs[2:])
		if i < 0 || st.Count != 3 || err != nil {
			return fmt.Errorf("request %d, %+v, %w", i, st, err)
		}
		if err := comm.WaitAll(rs); err != nil {
			return err
		}
		if _, err := comm.Request(in.Refused("Iread", why)).Wait(); !errors.Is(err, why) {
			return fmt.Errorf("the error is %w", err)
		}
		r, started := (*mpi.Comm)(nil).Background("Iread", 8, nil)
		if _, err = comm.Request(r).Wait(); started || !errors.Is(err, comm.ErrClosed) {
			return fmt.Errorf("%t, the error is %w", started, err)
		}
		return nil
	})
}

func TestHostLeaders(t *testing.T) {
	commtest.Run(t, 5, func(c *comm.Comm) error {
		in := (*mpi.Comm)(c)
		if got := fmt.Sprint(in.Hosts(), in.HostLeaders()); got != "[3 1 1 3 0] [0 1 4]" {
			return errors.New(got)
		}
		return nil
	}, commtest.WithNodes(3, 1, 1, 3, 0))
	require.Nil(t, (*mpi.Comm)(nil).Hosts())
	require.Empty(t, (*mpi.Comm)(nil).HostLeaders())
}
