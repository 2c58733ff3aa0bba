// Package cases has the cases of the suite, whose names are sentences. Those of addresses.go, changes.go, endpoints.go
// and policies.go need only states and traffic: they are tables, built with the types and functions of traffic.go. The
// others are functions that do more to a [testbed.Testbed].
//
// To add a case, append it to one of these tables, such as endpointCases, or write a function and name it in All. Name
// it in profiles_linux.go as well, unless every proxy has to pass it, and renew report/cases.txt with
// FAKEMODEL_UPDATE=1.
package cases
