// Package testbed runs one backend at a time, on the test network or in a simulation: it starts it, gives it states,
// makes connections, and compares their results with the oracle. A backend that is a program of its own is [Program].
package testbed
