// Package sysctl sets kernel parameters below /proc/sys, among them the limits of connection tracking (S42).
//
// A parameter that already has the wanted value is not written. A written value is read back: if it could not be set,
// or the kernel changed it, the result is an [Error] with the parameter's name, the wanted and the actual value. In a
// container /proc is often read-only, and usually another program has set the parameters: log the error and continue.
//
// A [Root] is the directory that contains proc and sys, so that tests need no kernel, and a container can use the
// host's.
package sysctl
