// Package addrwatch reports the kernel's notifications of address changes in a network namespace (Linux), and lists
// what changes meanwhile.
package addrwatch
