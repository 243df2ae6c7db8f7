//go:build libfabric

package fi

// #include "shim.h"
import "C"

import (
	"os"
	"strings"
	"sync/atomic"
)

// Provider is what implements the interface for a network, on top of another
// provider, or as a hook in front of any (fi_provider(7)).
type Provider struct {
	Name    string
	Version Version
}

// ProviderClass is the part that a provider plays.
type ProviderClass int

// The classes of providers.
const (
	ProviderCore    ProviderClass = iota // works alone
	ProviderUtility                      // works on top of a core provider, as "tcp;ofi_rxm"
	ProviderHook                         // stands in front of others, see UseHooks
	ProviderOffload                      // does a part of the work of others
)

// String names the class.
func (c ProviderClass) String() string { return name(int(c), "core", "utility", "hook", "offload") }

// Class is the provider's class, which its name tells.
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

// loaded says whether the library has loaded the providers, and with that read
// the environment.
var loaded atomic.Bool

// Providers are all providers and hooks of the library, whether there is a
// device for them or not (fi_getinfo with FI_PROV_ATTR_ONLY).
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

// UseHooks puts hooks in front of every fabric opened from now on, the last one
// outermost (fi_hook(7)): names as "ofi_hook_perf", or "perf" for short. It is
// the environment variable FI_HOOK, which the library reads once, so it has to
// come before any other call of this package that loads the providers: ErrBusy
// afterwards. A hook that does not exist is ErrNoEntry, and the others are in
// place nevertheless.
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
