// Package osthread runs functions on separate operating-system threads, for per-thread kernel state such as the network
// namespace. It is empty on systems other than Linux.
package osthread
