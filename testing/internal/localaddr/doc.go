// Package localaddr waits until addresses of interfaces are usable.
package localaddr
