package backendtest

import (
	"fmt"
	"time"

	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// Sticky returns a service of a year with session affinity and ports, and so many endpoints at each. number tells the
// addresses of services apart.
func Sticky(name string, year, number, endpoints int, ports ...string) (objects []any) {
	b := fm.Service(name).ClusterIP(fmt.Sprintf("10.96.0.%d", number)).Affinity(time.Hour)
	b.Created(time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC))
	for i, port := range ports {
		b.Port(port, uint16(80+i))
		for n := range endpoints {
			objects = append(objects, fm.Endpoint(fmt.Sprintf("%s:%s/TCP", name, port),
				fmt.Sprintf("10.%d.%d.%d:%d", 100+number, n>>8, n&255, 8080+i)).Build())
		}
	}
	return append([]any{b.Build()}, objects...)
}
