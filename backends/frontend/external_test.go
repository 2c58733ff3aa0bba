package frontend_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// The error of a port that the dataplane refuses says whether outside clients still reach it.
func TestAnErrorSaysWhetherOutsideClientsReachThePort(t *testing.T) {
	var refuse func(*frontend.PortChange)
	newTable := func(t *testing.T, limits frontend.Limits) *frontend.Table {
		table, err := frontend.New(frontend.Options{Families: []model.Family{model.IPv4}, Limits: limits,
			Apply: func(_ context.Context, c *frontend.Changes) error {
				for p := range c.Ports() {
					if refuse != nil {
						refuse(p)
					}
				}
				return nil
			}})
		require.NoError(t, err)
		return table
	}
	// reached returns, for each error of the next Sync, whether clients reach the port.
	reached := func(table *frontend.Table) (list []bool) {
		for _, e := range sink.PortErrors(table.Sync(t.Context())) {
			list = append(list, e.ServesExternal)
		}
		return list
	}
	refused := errors.New("refused")
	internal := fm.Service("default/web").ClusterIP("10.96.0.1").Port("http", 80)
	nodePort := fm.Service("default/web").ClusterIP("10.96.0.1").Port("http", 80).NodePort(30080).Build()
	for _, test := range []struct {
		name   string
		s      *model.Service
		refuse func(*frontend.PortChange)
		first  bool // when the port is made
		later  bool // when the change of a port that was served is refused
	}{
		{"the dataplane has nothing of it", nodePort,
			func(p *frontend.PortChange) { p.Refuse(nil, refused) }, false, false},
		{"the dataplane has what it had", nodePort,
			func(p *frontend.PortChange) { p.Refuse(p.Before, refused) }, false, true},
		{"the dataplane has a part", nodePort,
			func(p *frontend.PortChange) { p.Refuse(p.After, refused) }, true, true},
		{"the dataplane has nothing for outside clients", nodePort,
			func(p *frontend.PortChange) { p.Report([]error{refused}, func() bool { return false }) }, false, false},
		{"the port is not for outside clients", internal.Build(),
			func(p *frontend.PortChange) { p.Refuse(p.After, refused) }, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			changed := *test.s
			changed.SessionAffinityTimeout = 1e9
			refuse = test.refuse
			table := newTable(t, frontend.Limits{})
			table.SetService(test.s)
			assert.Equal(t, []bool{test.first}, reached(table))

			refuse = nil
			table = newTable(t, frontend.Limits{})
			table.SetService(test.s)
			assert.Empty(t, reached(table))
			refuse = test.refuse
			table.SetService(&changed)
			assert.Equal(t, []bool{test.later}, reached(table))
			assert.Equal(t, []bool{test.later}, reached(table), "as long as it is refused")
			refuse = nil
			table.ResyncFailed()
			assert.Empty(t, reached(table))
		})
	}
}

// So does the error of a port that exceeds a limit.
func TestAnErrorOfALimitSaysWhetherOutsideClientsReachThePort(t *testing.T) {
	newTable := func(limits frontend.Limits) *frontend.Table {
		table, err := frontend.New(frontend.Options{Families: []model.Family{model.IPv4}, Limits: limits,
			Apply: func(context.Context, *frontend.Changes) error { return nil }})
		require.NoError(t, err)
		return table
	}
	reached := func(table *frontend.Table, s *model.Service) (list []bool) {
		table.SetService(s)
		for _, e := range sink.PortErrors(table.Sync(t.Context())) {
			list = append(list, e.ServesExternal)
		}
		return list
	}
	web := func() *fm.ServiceBuilder {
		return fm.Service("default/web").ClusterIP("10.96.0.1").Port("http", 80).LoadBalancerIP("203.0.113.1")
	}
	withNodePort := web().NodePort(30080).Build()
	ofNamespace := func(n int) *frontend.Table {
		return newTable(frontend.Limits{Namespace: frontend.Budget{Frontends: n}})
	}
	ofService := func(n int) *frontend.Table {
		return newTable(frontend.Limits{Service: frontend.Budget{Frontends: n}})
	}
	assert.Equal(t, []bool{false}, reached(ofNamespace(1), withNodePort),
		"nothing of it is served")
	assert.Equal(t, []bool{true}, reached(ofService(2), withNodePort),
		"its VIP is not served")
	assert.Equal(t, []bool{false}, reached(ofService(1), withNodePort),
		"its cluster IP alone is served")

	table := newTable(frontend.Limits{Service: frontend.Budget{SourceRanges: 1}})
	ranges := []string{"192.0.2.0/25", "198.51.100.0/24"}
	assert.Equal(t, []bool{true}, reached(table, web().NodePort(30080).SourceRange(ranges...).Build()),
		"its VIP is not served")
	assert.Equal(t, []bool{false}, reached(table, web().SourceRange(ranges...).Build()),
		"the node port goes, for the same problem")
	assert.Equal(t, []bool{true}, reached(table, web().NodePort(30080).SourceRange(ranges...).Build()),
		"the node port comes back")
	assert.Empty(t, reached(table, web().SourceRange(ranges[0]).Build()))

	table = newTable(frontend.Limits{Service: frontend.Budget{SourceRanges: 1}})
	older := fm.Service("default/older").ClusterIP("10.96.0.2").Port("http", 80).ExternalIP("203.0.113.2").
		Created(time.Unix(1, 0)).Build()
	assert.Empty(t, reached(table, older))
	contested := web().ExternalIP("203.0.113.2").SourceRange(ranges...).Build()
	assert.Equal(t, []bool{false}, reached(table, contested), "its VIP is not served, its external IP is another's")
	table.DeleteService(older.Name)
	assert.Equal(t, []bool{true}, reached(table, contested), "its external IP is its own now")
	table.SetService(older)
	assert.Equal(t, []bool{true}, reached(table, contested), "and stays its own")

	many := web().NodePort(30080).Build()
	many.Ports[0].TooManyEndpoints = true
	assert.Equal(t, []bool{false}, reached(newTable(frontend.Limits{}), many))
}

// A table reports when a port loses its last external address to others, and when it has one again (S59).
func TestPortsThatLoseAllExternalAddressesAreReported(t *testing.T) {
	table, err := frontend.New(frontend.Options{
		Apply: func(context.Context, *frontend.Changes) error { return nil }})
	require.NoError(t, err)
	var told []string
	table.ReportExternal(func(port model.PortName, f model.Family, owns bool) {
		told = append(told, fmt.Sprint(port, f, owns))
	})
	sync := func(why string, want ...string) {
		t.Helper()
		told = nil
		require.NoError(t, table.Sync(t.Context()))
		assert.ElementsMatch(t, want, told, why)
	}
	of := func(name string, second int64) *fm.ServiceBuilder {
		return fm.Service("default/"+name).ClusterIP("10.96.0."+fmt.Sprint(second)).Port("http", 80).
			Created(time.Unix(second, 0))
	}
	const lost, has = "default/web:http/TCP IPv4 false", "default/web:http/TCP IPv4 true"
	web := func() *fm.ServiceBuilder { return of("web", 2).LoadBalancerIP("203.0.113.1") }
	older := of("older", 1).ExternalIP("203.0.113.1", "203.0.113.2").Build()
	table.SetService(older)
	table.SetService(web().Build())
	sync("it is the younger one", lost)
	sync("nothing changes")
	table.SetService(web().ExternalIP("203.0.113.2").Build())
	sync("another one that is not its own")
	table.SetService(web().ExternalIP("203.0.113.3").Build())
	sync("its own external IP", has)
	table.SetService(web().Build())
	sync("it goes", lost)
	table.SetService(web().NodePort(30080).Build())
	sync("its own node port", has)
	table.SetService(of("web", 2).Build())
	sync("it asks for no external address")
	table.SetService(web().Build())
	sync("again", lost)
	table.SetService(of("web", 2).Build())
	sync("it asks for none: it has lost nothing", has)
	table.SetService(web().Build())
	sync("again", lost)
	table.DeleteService(older.Name)
	sync("the owner goes", has)
	table.SetService(older)
	sync("the former owner has its other address")
	table.DeleteService(web().Build().Name)
	sync("it is deleted")
}
