//go:build libfabric

package fi

// #include "shim.h"
import "C"

import (
	"os"
	"strings"
	"sync/atomic"
)

// Provider implements libfabric's interface for a network, on top of another provider, or as a hook
// around any provider (fi_provider(7)).
type Provider struct {
	Name    string
	Version Version
}

// ProviderClass is the role of a provider.
type ProviderClass int

// The classes of providers.
const (
	ProviderCore    ProviderClass = iota // works without another provider
	ProviderUtility                      // works on top of a core provider: "tcp;ofi_rxm"
	ProviderHook                         // intercepts the calls of other providers, see UseHooks
	ProviderOffload                      // does a part of the work of other providers
)

// String returns the name of the class.
func (c ProviderClass) String() string { return name(int(c), "core", "utility", "hook", "offload") }

// Class returns the provider's class, which follows from its name.
func (p Provider) Class() ProviderClass {
	switch {
	case strings.HasPrefix(p.Name, "ofi_hook_"):
		return ProviderHook
	case strings.HasPrefix(p.Name, "off_"):
		return ProviderOffload
	case strings.HasPrefix(p.Name, "ofi_"):
		return ProviderUtility
	}
	return ProviderCore
}

// loaded is set before the first call that makes the library load its providers. The library reads
// most of its environment variables only then.
var loaded atomic.Bool

// Providers returns all providers and hooks of the library, including providers that have no device
// on this machine (fi_getinfo with FI_PROV_ATTR_ONLY).
func Providers() ([]Provider, error) {
	infos, err := GetInfo(HeaderVersion, "", "", FlagProvAttrOnly, nil)
	if err != nil {
		return nil, err
	}
	var providers []Provider
	for _, i := range infos {
		providers = append(providers, Provider{i.Fabric.ProvName, i.Fabric.ProvVersion})
	}
	return providers, nil
}

// UseHooks layers hooks over every fabric that is opened later, the last hook outermost
// (fi_hook(7)). Names are for example "ofi_hook_perf", or "perf" for short. UseHooks sets the
// environment variable FI_HOOK, which the library reads once, when it loads the providers; after
// that UseHooks returns ErrBusy. If a hook does not exist, UseHooks returns ErrNoEntry and installs
// the others.
func UseHooks(names ...string) error {
	const function = "fi_hook"
	if loaded.Load() {
		return &Error{function, ErrBusy}
	}
	if err := os.Setenv("FI_HOOK", strings.Join(names, ";")); err != nil {
		return err
	}
	providers, err := Providers()
	if err != nil {
		return err
	}
	known := make(map[string]bool)
	for _, p := range providers {
		if p.Class() == ProviderHook {
			known[strings.ToLower(p.Name)] = true
		}
	}
	for _, n := range names {
		n = strings.ToLower(n)
		if !known[n] && !known["ofi_hook_"+n] {
			return &Error{function + " " + n, ErrNoEntry}
		}
	}
	return nil
}
