package benchmarks

import (
	"fmt"
	"os"
	"time"
)

// When the control plane is at rest: in each look it has used little of a processor since the one before.
const (
	restLook  = time.Second
	restShare = 0.05 // of a processor
	restLimit = 2 * time.Minute
)

// controlPlane is what serves the proxies: it is busy for a while after many objects have been written, and after a
// proxy has gone, which is not to be the next proxy's loss.
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

// settle waits until the control plane is at rest, and says whether it was before the limit.
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
