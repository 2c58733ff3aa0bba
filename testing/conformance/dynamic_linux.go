package conformance

// dynamicCases are the cases that are more than states and traffic.
func dynamicCases() []testCase {
	return nil
}
