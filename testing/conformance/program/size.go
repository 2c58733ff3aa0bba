package program

import "fmt"

// Size is the size of a cluster for a speed measurement.
type Size struct {
	// Services is the number of services, each with one port; Endpoints the number of endpoints per service, all on
	// another node.
	Services, Endpoints int
}

// The limits of the test network's addresses.
const (
	mostServices  = 60_000
	mostEndpoints = 500_000
)

// String returns services x endpoints, like 1000x10.
func (z Size) String() string { return fmt.Sprintf("%dx%d", z.Services, z.Endpoints) }

// Validate returns an error if the size is empty or exceeds the test network's addresses.
func (z Size) Validate() error {
	if z.Services < 1 || z.Endpoints < 1 || z.Services > mostServices || z.Endpoints > mostEndpoints/z.Services {
		return fmt.Errorf("%v: at least 1x1, at most %d services and %d endpoints in all", z, mostServices, mostEndpoints)
	}
	return nil
}
