//go:build libfabric

package fi

import (
	"errors"
	"io"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestErrno(t *testing.T) {
	require.Equal(t, "Resource temporarily unavailable", ErrAgain.Error())
	require.Equal(t, "Truncation error", ErrTruncated.Error())
	require.ErrorIs(t, ErrAgain, syscall.EAGAIN)
	require.NotErrorIs(t, ErrTruncated, syscall.Errno(ErrTruncated), "the system's numbers end at 255")
	for _, e := range []Errno{ErrNotImpl, ErrNotSupp, ErrNoProtoOpt} {
		require.ErrorIs(t, e, ErrNotSupported)
	}
	require.NotErrorIs(t, ErrAgain, ErrNotSupported)
	require.NotErrorIs(t, ErrAgain, io.EOF)
}

func TestError(t *testing.T) {
	require.NoError(t, check("fi_x", 0))
	require.NoError(t, check("fi_x", 3))
	err := check("fi_x", -11)
	require.EqualError(t, err, "fi_x: Resource temporarily unavailable")
	require.ErrorIs(t, err, ErrAgain)
	require.ErrorIs(t, err, syscall.EAGAIN)
	var e *Error
	require.True(t, errors.As(err, &e))
	require.Equal(t, "fi_x", e.Func)
	require.ErrorIs(t, unsupported("fi_x"), ErrNotSupported)
	require.ErrorIs(t, closedError("fi_x"), ErrClosed)
}

func TestVersion(t *testing.T) {
	v := MakeVersion(2, 6)
	require.Equal(t, 2, v.Major())
	require.Equal(t, 6, v.Minor())
	require.Greater(t, v, MakeVersion(1, 99))
}
