// Package sysctl sets kernel parameters below /proc/sys, and the limits of connection tracking that a service proxy is
// configured with (S42).
//
// A parameter that already has its value is not written, and what is written is read back: a value that could not be
// set, or that the kernel changed, is an [Error] that names the parameter, the wanted and the actual value. In a
// container /proc is often read-only. That is normal, and usually somebody else has set what is needed: log the error
// and go on.
//
// A [Root] is the directory to start from, so that tests need no kernel, and a container can use the host's.
package sysctl
