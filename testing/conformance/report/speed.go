package report

// Speed has figures of speed. They depend on the machine, and on what else it does.
type Speed struct {
	// Machine describes the machine in words.
	Machine string `json:"machine,omitempty"`
	// Runs has the figures for each size of cluster.
	Runs []SpeedRun `json:"runs"`
}

// SpeedRun has the figures for a cluster of one size. Times are in milliseconds; 0 means not measured. Without services
// they are those of the cases.
type SpeedRun struct {
	// Services is the number of services, Endpoints that of endpoints of each.
	Services  int `json:"services"`
	Endpoints int `json:"endpoints"`
	// Start is the time from the start of the process until every service is reached.
	Start float64 `json:"startMilliseconds,omitempty"`
	// Change is the time from the write of one change to the API until a packet shows it.
	Change Latency `json:"change,omitzero"`
	// Burst is the time until each of 100 changes that are written at once shows.
	Burst Latency `json:"burst,omitzero"`
	// Churn is the time until a change shows while ten are written each second.
	Churn Latency `json:"churn,omitzero"`
	// Rest is what the process did when nothing changed.
	Rest Rest `json:"rest,omitzero"`
	// CPU is the processor time that the process has used in all, and Memory the most memory that it had resident, in
	// bytes, together with what it has started.
	CPU    float64 `json:"cpuMilliseconds,omitempty"`
	Memory int64   `json:"memoryBytes,omitempty"`
	// Gap is the longest time between two packets of a connection in the background that sends all the time.
	Gap float64 `json:"gapMilliseconds,omitempty"`
	// Problem says why the measurement ended early.
	Problem string `json:"problem,omitempty"`
}

// Rest is what a program does when nothing changes, in milliseconds.
type Rest struct {
	// Time is how long nothing changed, and CPU the processor time that the program used meanwhile.
	Time float64 `json:"milliseconds"`
	CPU  float64 `json:"cpuMilliseconds"`
}

// Latency has two percentiles, in milliseconds, of a number of measurements.
type Latency struct {
	// P50 and P99 are the percentiles, and Count the number of measurements.
	P50   float64 `json:"p50Milliseconds"`
	P99   float64 `json:"p99Milliseconds"`
	Count int     `json:"count"`
	// CPU is the processor time that the process used meanwhile, and Gap the longest time between two packets of the
	// connection in the background.
	CPU float64 `json:"cpuMilliseconds,omitempty"`
	Gap float64 `json:"gapMilliseconds,omitempty"`
}
