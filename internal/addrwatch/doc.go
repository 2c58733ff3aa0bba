// Package addrwatch reports changes of the addresses of a network namespace as the kernel tells them (Linux).
package addrwatch
