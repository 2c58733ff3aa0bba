//go:build !linux

package dropin

// destroyUpstreamSets has nothing to do: ipsets are Linux's.
func destroyUpstreamSets() error { return nil }
