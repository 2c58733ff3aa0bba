//go:build !linux

package main

// destroyUpstreamSets has nothing to do: ipsets are Linux's.
func destroyUpstreamSets() error { return nil }
