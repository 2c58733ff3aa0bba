package conformance

import "slices"

// dynamicCases are the cases that are more than states and traffic.
func dynamicCases() []testCase {
	return slices.Concat(nodePortCases(), affinityCases(), balanceCases(), connectionCases(), staleFlowCases(), lifecycleCases())
}
