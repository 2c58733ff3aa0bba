// Package testkit is shared by the tests of this module, and by the programs that test: certificates, network
// namespaces, relays, random choices, leaked goroutines, what something costs, and skipping if the machine lacks
// something.
package testkit
