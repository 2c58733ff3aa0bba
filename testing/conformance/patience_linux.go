package conformance

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// patience is how long to wait for what.
type patience struct {
	network.Patience
	// repair is how long a backend that repairs itself may take.
	repair time.Duration
	// shrink is how long the events that led to a failure may be reduced.
	shrink time.Duration
}

func defaultPatience() patience {
	return patience{network.DefaultPatience(), 30 * time.Second, 45 * time.Second}
}

// patienceHere is the default, multiplied by KPL_PATIENCE if that is set, for emulated machines such as those of
// testing/vm. Only failures take longer then.
func patienceHere() (patience, error) {
	p := defaultPatience()
	if value := os.Getenv("KPL_PATIENCE"); value != "" {
		factor, err := strconv.Atoi(value)
		if err != nil || factor < 1 {
			return p, fmt.Errorf("KPL_PATIENCE=%s is not a number above 0", value)
		}
		p.Answer *= time.Duration(factor)
		p.repair *= time.Duration(factor)
	}
	return p, nil
}
