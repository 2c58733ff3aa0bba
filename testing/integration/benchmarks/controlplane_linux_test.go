package benchmarks

import (
	"fmt"
	"os"
	"time"
)

// The control plane counts as idle when it has used less than restShare of a processor since the look before.
const (
	restLook  = time.Second
	restShare = 0.05 // of a processor
	restLimit = 2 * time.Minute
)

// controlPlane serves the proxies. It is busy for a while after many objects have been written, and after a proxy has
// ended; the next proxy must not suffer from that.
type controlPlane []int // process ids

func findControlPlane() (c controlPlane, err error) {
	for _, name := range []string{"etcd", "kube-apiserver"} {
		pid, err := childNamed(os.Getpid(), name)
		if err != nil {
			return nil, err
		}
		c = append(c, pid)
	}
	return c, nil
}

// settle waits until the control plane is idle, and reports whether it was before the limit.
func (c controlPlane) settle(limit time.Duration) (bool, error) {
	last, err := c.used()
	if err != nil {
		return false, err
	}
	for end := time.Now().Add(limit); ; {
		began := time.Now()
		time.Sleep(restLook)
		now, err := c.used()
		if err != nil {
			return false, err
		}
		if float64(now-last) <= restShare*float64(time.Since(began)) {
			return true, nil
		}
		if time.Now().After(end) {
			return false, nil
		}
		last = now
	}
}

func (c controlPlane) used() (total time.Duration, err error) {
	for _, pid := range c {
		s, err := readStat(pid)
		if err != nil {
			return 0, fmt.Errorf("the control plane: %w", err)
		}
		total += s.own
	}
	return total, nil
}
