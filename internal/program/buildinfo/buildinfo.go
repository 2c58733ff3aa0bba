// Package buildinfo tells programs which version they are.
package buildinfo

import "runtime/debug"

// Version is the version of this program's module: that of the tag or, without one, of the commit it was built from,
// "(devel)" if it was built without what the repository says, and "unknown" if it is no part of a module.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
