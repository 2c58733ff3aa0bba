package conformance

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// timeouts limit the waits of a testbed.
type timeouts struct {
	network.Timeouts
	// repair limits the time that a backend needs to repair itself.
	repair time.Duration
	// shrink limits the time to reduce the events that led to a failure.
	shrink time.Duration
}

func defaultTimeouts() timeouts {
	return timeouts{network.DefaultTimeouts(), 30 * time.Second, 45 * time.Second}
}

// timeoutsHere returns the defaults multiplied by KPL_TIMEOUT_FACTOR, which emulated machines set, such as those of
// testing/vm. Only failures take longer then.
func timeoutsHere() (timeouts, error) {
	p := defaultTimeouts()
	if value := os.Getenv("KPL_TIMEOUT_FACTOR"); value != "" {
		factor, err := strconv.Atoi(value)
		if err != nil || factor < 1 {
			return p, fmt.Errorf("KPL_TIMEOUT_FACTOR=%s is not a number above 0", value)
		}
		p = p.times(factor)
	}
	return p, nil
}

// times returns the timeouts of a machine that is slower by a factor.
func (p timeouts) times(factor int) timeouts {
	p.Answer *= time.Duration(factor)
	p.repair *= time.Duration(factor)
	return p
}
