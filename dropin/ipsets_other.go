//go:build !linux

package dropin

// destroyUpstreamSets does nothing: only Linux has ipsets.
func destroyUpstreamSets() error { return nil }
