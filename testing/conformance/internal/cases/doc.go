// Package cases is what the suite tests, a list of cases whose names are sentences. Those of addresses.go, changes.go,
// endpoints.go and policies.go need only states and traffic: they are tables, and traffic.go has their words. The
// others are functions that do more to a [testbed.Testbed].
package cases
