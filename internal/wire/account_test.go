package wire

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const accountLine = "cmd=finalize messages_sent=1 messages_received=2 bytes_sent=3 bytes_received=4 waited_ns=5"

func TestAccountOnTheWire(t *testing.T) {
	a := Account{1, 2, 3, 4, 5}
	line, err := PMIMessage{Cmd: "finalize", Fields: a.PMIFields()}.Append(nil)
	require.NoError(t, err)
	require.Equal(t, accountLine+"\n", string(line))
	m, err := ParsePMI(line)
	require.NoError(t, err)
	got, ok := ParseAccount(m)
	require.True(t, ok)
	require.Equal(t, a, got)

	most := Account{math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64}
	line, err = PMIMessage{Cmd: "finalize", Fields: most.PMIFields()}.Append(nil)
	require.NoError(t, err)
	m, err = ParsePMI(line)
	require.NoError(t, err)
	got, ok = ParseAccount(m)
	require.True(t, ok)
	require.Equal(t, most, got)
}

func TestImpossibleAccounts(t *testing.T) {
	for _, line := range []string{
		"cmd=finalize",
		"cmd=finalize messages_sent=1 messages_received=2 bytes_sent=3 bytes_received=4",
		"cmd=finalize messages_sent=1 messages_received=2 bytes_sent=3 bytes_received=4 waited_ns=",
		"cmd=finalize messages_sent=1 messages_received=2 bytes_sent=-3 bytes_received=4 waited_ns=5",
		"cmd=finalize messages_sent=1 messages_received=2 bytes_sent=3 bytes_received=4 waited_ns=-5",
		"cmd=finalize messages_sent=1 messages_received=2 bytes_sent=3 bytes_received=0x4 waited_ns=5",
		"cmd=finalize messages_sent=1e3 messages_received=2 bytes_sent=3 bytes_received=4 waited_ns=5",
		"cmd=finalize messages_sent=1 messages_received=2 bytes_sent=9223372036854775808 bytes_received=4 waited_ns=5",
		"cmd=finalize messages_sent=0 messages_received=2 bytes_sent=3 bytes_received=4 waited_ns=5",
		"cmd=finalize messages_sent=1 messages_received=0 bytes_sent=3 bytes_received=4 waited_ns=5",
	} {
		m, err := ParsePMI([]byte(line))
		require.NoError(t, err)
		_, ok := ParseAccount(m)
		require.False(t, ok, line)
	}
}

func TestAccountsAddUp(t *testing.T) {
	a := Account{1, 2, 3, 4, time.Second}
	require.True(t, a.Add(&Account{10, 20, 30, 40, time.Minute}))
	require.Equal(t, Account{11, 22, 33, 44, time.Minute + time.Second}, a)
	require.False(t, a.Add(&Account{BytesSent: math.MaxInt64, MessagesSent: 1}))
	require.Equal(t, Account{11, 22, 33, 44, time.Minute + time.Second}, a)
}

// FuzzAccount: if ParseAccount accepts an account, the account is valid, and it is the same after
// PMIFields and another ParseAccount.
func FuzzAccount(f *testing.F) {
	f.Add([]byte(accountLine))
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := ParsePMI(line)
		if err != nil {
			return
		}
		a, ok := ParseAccount(m)
		if !ok {
			return
		}
		require.True(t, a.Valid())
		again, ok := ParseAccount(PMIMessage{Cmd: m.Cmd, Fields: a.PMIFields()})
		require.True(t, ok)
		require.Equal(t, a, again)
	})
}
