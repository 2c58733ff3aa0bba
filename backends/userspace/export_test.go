package userspace

// Tuning are the limits and timeouts that tests change.
type Tuning = tuning

// With returns the options with other limits and timeouts.
func (o Options) With(t Tuning) Options {
	o.tuning = t
	return o
}

// Listeners returns what is served at present, sorted by service port.
func (l *Loopback) Listeners() []Listener { return l.backend.Listeners() }
