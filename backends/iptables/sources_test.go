package iptables_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// A long list of source ranges has its rules once in each table, whatever the number of ports that it restricts.
func TestALongListOfSourceRangesIsThereOnce(t *testing.T) {
	const ports, ranges = 20, 50
	service := func(name string, number, ranges int) *model.Service {
		b := fm.Service(name).ClusterIP(fmt.Sprintf("10.96.0.%d", number)).LoadBalancerIP(fmt.Sprintf("203.0.113.%d", number))
		for i := range ports {
			b.Port(fmt.Sprintf("p%d", i), uint16(80+i))
		}
		for i := range ranges {
			b.SourceRange(fmt.Sprintf("192.0.2.%d/32", i))
		}
		return b.Build()
	}
	r := newRig(t, iptables.Options{})
	rules := func() int { return strings.Count(r.fakes[model.IPv4].Dump(), " -s 192.0.2.") }
	list := func() int { return strings.Count(r.fakes[model.IPv4].Dump(), ":KPL-SOURCES-") }
	r.Set(service("default/a", 1, ranges))
	r.Sync()
	assert.Equal(t, ranges, rules(), "of table filter: nothing has endpoints")
	for _, name := range []string{"default/a", "default/b"} {
		r.Set(service("default/b", 2, ranges))
		for i := range ports {
			r.Set(fm.Endpoint(fmt.Sprintf("%s:p%d/TCP", name, i), "10.1.0.1:80").Build())
		}
	}
	r.Sync()
	assert.Equal(t, ranges, rules(), "of table nat")
	assert.Equal(t, 1, list())
	r.Set(service("default/a", 1, ranges-1))
	r.Sync()
	assert.Equal(t, ranges+ranges-1, rules())
	assert.Equal(t, 2, list())
	r.Set(service("default/b", 2, 8))
	r.Sync()
	assert.Equal(t, ranges-1+8*ports, rules(), "short ones are those of their ports")
	r.Set(service("default/a", 1, 0))
	r.Sync()
	assert.Zero(t, list(), "the last port that used it has taken it away")
}
