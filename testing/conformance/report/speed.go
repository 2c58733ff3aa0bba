package report

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Speed has speed figures. They depend on the machine and its load.
type Speed struct {
	// Machine describes the machine in words.
	Machine string `json:"machine,omitempty"`
	// Runs has the figures of each cluster size.
	Runs []SpeedRun `json:"runs"`
}

// SpeedRun has the figures of one cluster size. Times are in milliseconds; 0 means not measured. Without services the
// figures are from the cases.
type SpeedRun struct {
	// Services is the number of services, Endpoints the number of endpoints per service.
	Services  int `json:"services"`
	Endpoints int `json:"endpoints"`
	// Probing says how changes were observed: by "SYNs" or by complete "connections". Older reports have "" for the
	// latter.
	Probing string `json:"probing,omitempty"`
	// Start is the time from the start of the process until every service is reached.
	Start float64 `json:"startMilliseconds,omitempty"`
	// Change is the time from the API write of a single change until a packet shows it.
	Change Latency `json:"change,omitzero"`
	// Burst is the time until each of 100 changes, written together, shows.
	Burst Latency `json:"burst,omitzero"`
	// Churn is the time until a change shows while ten changes are written per second.
	Churn Latency `json:"churn,omitzero"`
	// Rates has the same for each change rate, including Churn's. Older reports have none.
	Rates []Rate `json:"rates,omitempty"`
	// Listing is a listing of the rules while nothing changed, or nil.
	Listing *Listing `json:"listing,omitempty"`
	// Rest describes the process while nothing changed.
	Rest Rest `json:"rest,omitzero"`
	// CPU is the total CPU time, and Memory the peak resident memory in bytes, of the process and its children.
	CPU    float64 `json:"cpuMilliseconds,omitempty"`
	Memory int64   `json:"memoryBytes,omitempty"`
	// Gap is the longest time between two packets of a background connection that sends continuously.
	Gap float64 `json:"gapMilliseconds,omitempty"`
	// Problem says why the measurement ended early. NotMeasured: the machine was too busy meanwhile, so that it says
	// nothing about the program.
	Problem     string `json:"problem,omitempty"`
	NotMeasured bool   `json:"notMeasured,omitempty"`
}

// Rest describes a program while nothing changes, in milliseconds.
type Rest struct {
	// Time is the duration, and CPU the CPU time that the program used.
	Time float64 `json:"milliseconds"`
	CPU  float64 `json:"cpuMilliseconds"`
}

// Latency has percentiles of a number of measurements, in milliseconds.
type Latency struct {
	// P50 and P99 are the percentiles, and Count the number of measurements.
	P50   float64 `json:"p50Milliseconds"`
	P99   float64 `json:"p99Milliseconds"`
	Count int     `json:"count"`
	// CPU is the CPU time that the process used in the meantime, and Gap the longest time between two packets of the
	// background connection.
	CPU float64 `json:"cpuMilliseconds,omitempty"`
	Gap float64 `json:"gapMilliseconds,omitempty"`
	// Quantiles is the distribution, nil if it was not kept.
	Quantiles Quantiles `json:"quantiles,omitempty"`
	// Judge is the judge's share, nil if not measured.
	Judge *Judge `json:"judge,omitempty"`
}

// Judge is the judge's share of a measurement, in milliseconds: the time that is not the program's.
type Judge struct {
	// Write is the duration of the API write, the average if there were several.
	Write float64 `json:"writeMilliseconds"`
	// P50 and P99 are the times to observe the same changes again, when all of them had shown already.
	P50 float64 `json:"p50Milliseconds"`
	P99 float64 `json:"p99Milliseconds"`
}

// Rate describes changes written at a fixed rate, whatever the program did.
type Rate struct {
	// PerSecond is the number of changes due per second.
	PerSecond int `json:"perSecond"`
	// Latency counts from the time when a change was due.
	Latency `json:",inline"`
	// Written is the number of changes written, and Probed the number of these that the judge looked for. Replaced is the
	// number of probed changes that another change replaced before they showed; Count does not include them.
	Written  int `json:"written"`
	Probed   int `json:"probed"`
	Replaced int `json:"replaced,omitempty"`
	// Late is the 99th percentile of the time from when a change was due until it was written, in milliseconds: the
	// judge's share of the latency.
	Late float64 `json:"lateMilliseconds"`
	// Listing is a listing of the rules while changes continued at this rate, or nil.
	Listing *Listing `json:"listing,omitempty"`
}

// Listing is a listing of all the node's rules.
type Listing struct {
	// Command is the command that lists the rules, Time its duration in milliseconds, and Bytes the size of its output.
	// Unfinished: it was killed after that time.
	Command    string  `json:"command"`
	Time       float64 `json:"milliseconds"`
	Bytes      int64   `json:"bytes"`
	Unfinished bool    `json:"unfinished,omitempty"`
	// Problem says why the listing failed.
	Problem string `json:"problem,omitempty"`
	// Changes is the latency of the changes in the meantime.
	Changes Latency `json:"changes,omitzero"`
}

// PerSecond returns the figures for a rate, or nil. Older reports have only those for ten changes per second.
func (s *SpeedRun) PerSecond(rate int) *Rate {
	for i := range s.Rates {
		if s.Rates[i].PerSecond == rate {
			return &s.Rates[i]
		}
	}
	if rate == churnRate && s.Churn.Count > 0 {
		return &Rate{PerSecond: rate, Latency: s.Churn}
	}
	return nil
}

// churnRate is the rate of [SpeedRun.Churn].
const churnRate = 10

// Quantiles is a distribution: the minimum, the maximum, and values in between, evenly spaced by rank: the 26th of 51
// values is the median. In YAML it is a string.
type Quantiles []float64

// mostQuantiles is the maximum number of values in a distribution.
const mostQuantiles = 1000

// MarshalJSON implements [json.Marshaler].
func (q Quantiles) MarshalJSON() ([]byte, error) {
	words := make([]string, len(q))
	for i, v := range q {
		words[i] = strconv.FormatFloat(v, 'g', -1, 64)
	}
	return json.Marshal(strings.Join(words, " "))
}

// UnmarshalJSON implements [json.Unmarshaler].
func (q *Quantiles) UnmarshalJSON(text []byte) error {
	var joined string
	if err := json.Unmarshal(text, &joined); err != nil {
		return fmt.Errorf("quantiles: %w", err)
	}
	words := strings.Fields(joined)
	if len(words) > mostQuantiles {
		return fmt.Errorf("quantiles: %d of them, more than %d", len(words), mostQuantiles)
	}
	list := make(Quantiles, len(words))
	for i, word := range words {
		v, err := strconv.ParseFloat(word, 64)
		if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			return fmt.Errorf("quantiles: %q is not a time in milliseconds", word)
		}
		list[i] = v
	}
	if !slices.IsSorted(list) {
		return fmt.Errorf("quantiles: they do not ascend: %v", list)
	}
	*q = list
	return nil
}
