package bootstrap

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/internal/params"
	"golang.org/x/sys/unix"
)

func testCard() *Card {
	secret := NewSecret()
	return &Card{
		JobID: "job1", Secret: secret[:], Size: 4, KVSName: "kvs_job1",
		Nodes: Runs([]int{0, 0, 1, 1}), AppNums: Runs([]int{0, 0, 0, 1}), Hosts: []string{"127.0.0.1", "127.0.0.2"}, BasePort: 20000,
		Params: []CardParam{{"engine.eager_limit", "4k", params.FromFlag}},
	}
}

func TestCardRoundTrip(t *testing.T) {
	c := testCard()
	f, err := c.Seal()
	require.NoError(t, err)
	defer f.Close()
	for range 2 { // nobody moves the offset that all ranks share
		got, err := readCard(int(f.Fd()))
		require.NoError(t, err)
		require.Equal(t, c, got)
	}
	_, err = f.Write([]byte("x"))
	require.ErrorIs(t, err, unix.EPERM)
	require.Equal(t, []int{0, 0, 1, 1}, expand(c.Nodes, 4))
	set, err := c.params()
	require.NoError(t, err)
	require.Equal(t, params.Value{Text: "4k", Source: params.FromFlag}, set.Get("engine.eager_limit"))
	require.Equal(t, c.Params, CardParams(set))
	require.Nil(t, CardParams(nil))
}

func TestCardOfGarbageDescriptors(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), []byte(cardMagic+"{}"), 0o600))
	file, err := os.Open(filepath.Join(dir, "f"))
	require.NoError(t, err)
	defer file.Close()
	unsealed, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	defer unix.Close(unsealed)
	for _, fd := range []int{-1, 0, 1 << 20, int(file.Fd()), unsealed} {
		_, err := readCard(fd)
		require.ErrorIs(t, err, errNotCard, "descriptor %d", fd)
	}
	_, err = unix.Write(unsealed, []byte("weftjob0{}"))
	require.NoError(t, err)
	_, err = unix.FcntlInt(uintptr(unsealed), unix.F_ADD_SEALS, cardSeals)
	require.NoError(t, err)
	_, err = readCard(unsealed)
	require.ErrorIs(t, err, errNotCard)
}

func TestMemoryFile(t *testing.T) {
	f, err := MemoryFile("job1")
	require.NoError(t, err)
	defer f.Close()
	card, err := testCard().Seal()
	require.NoError(t, err)
	defer card.Close()
	disk, err := os.Create(filepath.Join(t.TempDir(), "f"))
	require.NoError(t, err)
	defer disk.Close()
	named, err := os.CreateTemp("/dev/shm", "weft-test-")
	require.NoError(t, err)
	defer named.Close()
	require.NoError(t, os.Remove(named.Name()))
	unnamed := int(named.Fd()) // nobody can seal it
	for _, fd := range []int{-1, 0, 1 << 20, int(disk.Fd()), int(card.Fd()), unnamed} {
		require.False(t, memoryFile(fd), "descriptor %d", fd)
	}
	require.True(t, memoryFile(int(f.Fd())))
	require.NoError(t, f.Truncate(1<<20))
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
	require.NoError(t, err)
	require.True(t, memoryFile(int(f.Fd())))
}

func TestCardChecks(t *testing.T) {
	for name, spoil := range map[string]func(*Card){
		"version":   func(c *Card) { c.Version = 2 },
		"size":      func(c *Card) { c.Size = 0 },
		"job":       func(c *Card) { c.JobID = "" },
		"secret":    func(c *Card) { c.Secret = c.Secret[:31] },
		"addresses": func(c *Card) { c.Addrs = []string{"a"} },
		"port":      func(c *Card) { c.BasePort = 65535 },
		"memory":    func(c *Card) { c.Memory = -1 },
		"hosts":     func(c *Card) { c.Hosts = c.Hosts[:1] },
		"few":       func(c *Card) { c.Nodes = c.Nodes[:1] },
		"many":      func(c *Card) { c.Nodes[1].Count = 1 << 40 },
		"negative":  func(c *Card) { c.AppNums[1].Value = -1 },
	} {
		c := testCard()
		c.Version = cardVersion
		spoil(c)
		text, err := json.Marshal(c)
		require.NoError(t, err)
		_, err = parseCard(append([]byte(cardMagic), text...))
		require.Error(t, err, name)
	}
	c := testCard()
	c.Params[0].Key = "no.such.key"
	_, err := c.params()
	require.ErrorContains(t, err, "no.such.key")
}

func FuzzCard(f *testing.F) {
	c := testCard()
	c.Version = cardVersion
	text, err := json.Marshal(c)
	require.NoError(f, err)
	f.Add(append([]byte(cardMagic), text...))
	f.Add([]byte(cardMagic + "{}"))
	f.Add([]byte(cardMagic + `{"version":1,"size":1,"nodes":[{"v":0,"n":9223372036854775807}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseCard(data)
		if err != nil {
			return
		}
		_, _ = c.params()
		again, err := json.Marshal(c)
		require.NoError(t, err)
		d, err := parseCard(append([]byte(cardMagic), again...))
		require.NoError(t, err)
		require.True(t, bytes.Equal(c.Secret, d.Secret))
		require.Equal(t, c.Nodes, d.Nodes)
	})
}
