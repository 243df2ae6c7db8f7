// Package place says which rank runs on which host, and on which of its cores.
package place
