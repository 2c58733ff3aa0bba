package testbed

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// Timeouts limit the waits of a testbed.
type Timeouts struct {
	network.Timeouts
	// Repair limits the time that a backend needs to repair itself.
	Repair time.Duration
	// Shrink limits the time to reduce the events that led to a failure.
	Shrink time.Duration
}

// DefaultTimeouts returns the timeouts of a usual machine.
func DefaultTimeouts() Timeouts {
	return Timeouts{network.DefaultTimeouts(), 30 * time.Second, 45 * time.Second}
}

// TimeoutsHere returns the defaults multiplied by KPL_TIMEOUT_FACTOR, which emulated machines set, such as those of
// testing/vm. Only failures take longer then.
func TimeoutsHere() (Timeouts, error) {
	p := DefaultTimeouts()
	if value := os.Getenv("KPL_TIMEOUT_FACTOR"); value != "" {
		factor, err := strconv.Atoi(value)
		if err != nil || factor < 1 {
			return p, fmt.Errorf("KPL_TIMEOUT_FACTOR=%s is not a number above 0", value)
		}
		p = p.Times(factor)
	}
	return p, nil
}

// Times returns the timeouts of a machine that is slower by a factor.
func (p Timeouts) Times(factor int) Timeouts {
	p.Answer *= time.Duration(factor)
	p.Repair *= time.Duration(factor)
	return p
}
