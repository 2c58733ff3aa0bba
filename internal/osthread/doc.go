// Package osthread runs functions on operating-system threads of their own, for what the kernel keeps for each thread,
// such as its network namespace. It is empty on systems other than Linux.
package osthread
