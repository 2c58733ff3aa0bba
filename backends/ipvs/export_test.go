package ipvs

import "time"

// Draining returns the options with another interval between the checks for connections that have ended.
func (o Options) Draining(every time.Duration) Options {
	o.drainInterval = every
	return o
}
