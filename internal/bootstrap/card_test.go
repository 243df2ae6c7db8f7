package bootstrap

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/internal/params"
)

func testCard() *Card {
	secret := NewSecret()
	return &Card{
		JobID: "job1", Secret: secret[:], Size: 4, KVSName: "kvs_job1",
		HostOf: Runs([]int{0, 0, 1, 1}), AppNums: Runs([]int{0, 0, 0, 1}), Hosts: []string{"127.0.0.1", "127.0.0.2"}, BasePort: 20000,
		Params: []CardParam{{"engine.eager_limit", "4k", params.FromFlag}},
	}
}

func TestCardRoundTrip(t *testing.T) {
	c := testCard()
	f, err := c.Seal()
	require.NoError(t, err)
	defer f.Close()
	for range 2 { // a read does not move the offset that all ranks share
		got, err := readCard(int(f.Fd()))
		require.NoError(t, err)
		require.Equal(t, c, got)
	}
	_, err = f.Write([]byte("x"))
	require.Error(t, err)
	require.Equal(t, []int{0, 0, 1, 1}, expand(c.HostOf, 4))
	for i, node := range []int{0, 0, 1, 1} {
		require.Equal(t, node, valueAt(c.HostOf, i))
	}
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
	for _, fd := range []int{-1, 0, 1 << 20, int(file.Fd())} {
		_, err := readCard(fd)
		require.ErrorIs(t, err, errNotCard, "descriptor %d", fd)
	}
}

// TestCardWithoutMemoryFiles checks the card of a host without memory files: it is a file on disk
// whose name was removed, and no rank can write to it. readCard refuses a descriptor that can be
// written.
func TestCardWithoutMemoryFiles(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	want := testCard()
	want.Version = cardVersion
	text, err := json.Marshal(want)
	require.NoError(t, err)
	f, err := readOnly(append([]byte(cardMagic), text...))
	require.NoError(t, err)
	defer f.Close()
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
	got, err := readCard(int(f.Fd()))
	require.NoError(t, err)
	require.Equal(t, want, got)
	_, err = f.Write([]byte("x"))
	require.Error(t, err)

	writable, err := os.Create(filepath.Join(dir, "f"))
	require.NoError(t, err)
	defer writable.Close()
	_, err = writable.Write(append([]byte(cardMagic), text...))
	require.NoError(t, err)
	require.NoError(t, os.Remove(writable.Name()))
	_, err = readCard(int(writable.Fd()))
	require.ErrorIs(t, err, errNotCard, "a process could change the card through this descriptor")

	t.Setenv("TMPDIR", filepath.Join(dir, "none"))
	_, err = readOnly(nil)
	require.ErrorIs(t, err, os.ErrNotExist)
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
		"few":       func(c *Card) { c.HostOf = c.HostOf[:1] },
		"many":      func(c *Card) { c.HostOf[1].Count = 1 << 40 },
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
		require.Equal(t, c.HostOf, d.HostOf)
	})
}
