// Package cases is what the suite tests, a list of cases whose names are sentences. Those of addresses.go, changes.go,
// endpoints.go and policies.go need only states and traffic: they are tables, and traffic.go has their words. The
// others are functions that do more to a [testbed.Testbed].
//
// To add a case, append it to one of these tables, such as endpointCases, or write a function and name it in All. Name
// it in profiles_linux.go as well, unless every proxy has to pass it, and renew report/cases.txt with
// FAKEMODEL_UPDATE=1.
package cases
