// Package testkit is shared by the tests of this module: certificates, network namespaces, random choices, leaked
// goroutines, and skipping if the machine lacks something. Only tests use it.
package testkit
