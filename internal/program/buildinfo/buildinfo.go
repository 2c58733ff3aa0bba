// Package buildinfo returns the version of the running program.
package buildinfo

import "runtime/debug"

// Version returns the version of this program's module: that of the tag or, without one, of the commit it was built
// from. It is "(devel)" if it was built without version-control information, and "unknown" if it is not part of a
// module.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
