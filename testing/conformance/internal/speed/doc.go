// Package speed measures a service proxy that is a program: how long it takes to start with many services, and how long
// after an API write a packet shows the change. docs/conformance.md explains the figures.
//
// Each cluster size has its own test network. A pod of the node observes replaced endpoints: with SYNs where these
// reveal the selected endpoint, otherwise with complete connections.
package speed
