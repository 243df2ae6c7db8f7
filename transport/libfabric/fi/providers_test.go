//go:build libfabric

package fi

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestProviders(t *testing.T) {
	providers, err := Providers()
	require.NoError(t, err)
	classes := make(map[string]ProviderClass)
	for _, p := range providers {
		classes[p.Name] = p.Class()
		require.NotZero(t, p.Version, p.Name)
	}
	require.Subset(t, classes, map[string]ProviderClass{
		"tcp":            ProviderCore,
		"shm":            ProviderCore,
		"udp":            ProviderCore,
		"ofi_rxm":        ProviderUtility,
		"ofi_rxd":        ProviderUtility,
		"ofi_hook_perf":  ProviderHook,
		"ofi_hook_debug": ProviderHook,
		"ofi_hook_noop":  ProviderHook,
	})
	require.Equal(t, "hook", ProviderHook.String())
}

// TestUseHooks calls UseHooks in a child process, because in this one the library may have read its
// environment already.
func TestUseHooks(t *testing.T) {
	require.ErrorIs(t, func() error { _, _ = Providers(); return UseHooks("perf") }(), ErrBusy)

	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"=hooks", "FI_LOG_LEVEL=trace", "FI_LOG_PROV="+xnet)
	var log strings.Builder
	cmd.Stderr = &log
	require.NoError(t, cmd.Start())
	timer := time.AfterFunc(testTimeout, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	err := cmd.Wait()
	require.NoError(t, err, log.String())
	require.Contains(t, log.String(), "Installing perf hook")
	require.Contains(t, log.String(), "Installing debug hook")
	require.Contains(t, log.String(), "cq opened, fid:", "the debug hook saw the queue")
	if !strings.Contains(log.String(), "Unable to open PMU") { // otherwise the perf hook has no counters
		require.Contains(t, log.String(), "PERF: CPU", "the perf hook prints its counters at the end")
	}
}

// hooksChild opens objects with two hooks and checks that they work.
func hooksChild() error {
	if err := UseHooks("ofi_hook_perf", "debug"); err != nil {
		return err
	}
	if err := UseHooks("noop"); !errors.Is(err, ErrBusy) {
		return fmt.Errorf("a second UseHooks: %w", err)
	}
	hints := NewInfo()
	hints.Fabric.ProvName = xnet
	infos, err := GetInfo(HeaderVersion, "127.0.0.1", "", FlagSource, hints)
	if err != nil {
		return err
	}
	f, err := OpenFabric(infos[0])
	if err != nil {
		return err
	}
	q, err := f.OpenEQ(EQAttr{Flags: FlagWrite})
	if err != nil {
		return err
	}
	d, err := f.OpenDomain(infos[0])
	if err != nil {
		return err
	}
	cq, err := d.OpenCQ(CQAttr{Format: CQTagged})
	if err != nil {
		return err
	}
	if _, err := f.OpenDomain2(infos[0], FlagPeer); !errors.Is(err, ErrNotSupported) {
		return fmt.Errorf("hooks have no fi_domain2: %w", err)
	}
	if err := q.Write(EQEvent{Type: EventNotify, Data: 7}, 0); err != nil {
		return err
	}
	if ev, err := q.Read(0); err != nil || ev.Data != 7 {
		return fmt.Errorf("event %v: %w", ev, err)
	}
	return errors.Join(cq.Close(), d.Close(), q.Close(), f.Close())
}

func TestParams(t *testing.T) {
	t.Setenv("FI_TCP_IFACE", "lo")
	params, err := Params()
	require.NoError(t, err)
	byName := make(map[string]Param)
	for _, p := range params {
		byName[p.Name] = p
		require.NotEmpty(t, p.Help, p.Name)
		require.NotEqual(t, "Unknown", p.Type.String(), p.Name)
	}
	require.Contains(t, byName, "FI_PROVIDER")
	require.Contains(t, byName, "FI_HOOK")
	require.False(t, byName["FI_HOOK"].Set)
	require.Equal(t, "lo", byName["FI_TCP_IFACE"].Value)
	require.True(t, byName["FI_TCP_IFACE"].Set)
	require.Equal(t, ParamSizeT, byName["FI_UNIVERSE_SIZE"].Type)
	require.Equal(t, ParamBool, byName["FI_FORK_UNSAFE"].Type)
}
