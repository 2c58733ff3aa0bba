package conformance

import "slices"

// trafficCases are all cases that consist of states and traffic.
func trafficCases() []trafficCase {
	return slices.Concat(endpointCases(), policyCases(), detectorCases(), addressCases(), changeCases())
}
