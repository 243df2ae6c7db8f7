//go:build libfabric

package fi

// #include "shim.h"
import "C"

import "unsafe"

// ParamType is the type of a Param (enum fi_param_type).
type ParamType int

// The types of parameters.
const (
	ParamString ParamType = C.FI_PARAM_STRING
	ParamInt    ParamType = C.FI_PARAM_INT
	ParamBool   ParamType = C.FI_PARAM_BOOL
	ParamSizeT  ParamType = C.FI_PARAM_SIZE_T
)

// String returns the name of the type as fi_info -e prints it.
func (t ParamType) String() string {
	return name(int(t), "String", "Integer", "Boolean (0/1, on/off, true/false, yes/no)", "size_t")
}

// Param is an environment variable that the library or a provider reads
// (struct fi_param).
type Param struct {
	Name  string // name of the variable, for example "FI_PROVIDER"
	Type  ParamType
	Help  string
	Value string // the variable's value in C's environment; empty if it is not set
	Set   bool   // whether C's environment has the variable
}

// Params returns the environment variables of the library and of all loaded providers
// (fi_getparams). The library reads most of them in the first call that loads the providers, so set
// them before.
func Params() ([]Param, error) {
	loaded.Store(true)
	var (
		c *C.struct_fi_param
		n C.int
	)
	if err := check("fi_getparams", C.fi_getparams(&c, &n)); err != nil {
		return nil, err
	}
	if c == nil {
		return nil, nil
	}
	defer C.fi_freeparams(c)
	params := make([]Param, 0, n)
	for _, p := range unsafe.Slice(c, n) {
		params = append(params, Param{
			Name:  goString(p.name),
			Type:  ParamType(p._type),
			Help:  goString(p.help_string),
			Value: goString(p.value),
			Set:   p.value != nil,
		})
	}
	return params, nil
}
