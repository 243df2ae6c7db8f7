//go:build !libfabric

package examples_test

const withLibfabric = false
