// Package integration tests the library against real Kubernetes API servers. README.md says how to run the tests.
package integration
