package kubeproxy_test

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// ovs is a dataplane like Antrea's: it has a group of at most limit buckets for each service port. Its backend keeps no
// record: it relies on the old state that each change contains.
type ovs struct {
	t      *testing.T
	mu     sync.Mutex
	groups map[model.PortName]map[int]netip.AddrPort
	limit  int
	tried  []string // the Services of the ports that were delivered
}

func (o *ovs) apply(_ context.Context, c *frontend.Changes) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for p := range c.Ports() {
		o.tried = append(o.tried, p.Name().Service.Name)
		if err := o.installGroup(p); err != nil {
			p.Refuse(p.Before, err)
		}
	}
	return nil
}

func (o *ovs) installGroup(p *frontend.PortChange) error {
	group := maps.Clone(o.groups[p.Name()])
	assert.Equal(o.t, p.Before == nil, group == nil, "Before is what the dataplane has of %v", p.Name())
	if p.After == nil {
		delete(o.groups, p.Name())
		return nil
	}
	if group == nil {
		group = map[int]netip.AddrPort{}
	}
	for _, e := range p.EndpointChanges(model.ClusterSet) {
		if e.Before != nil {
			assert.Equal(o.t, e.Before.Target, group[e.Slot])
		}
		if delete(group, e.Slot); e.After != nil {
			group[e.Slot] = e.After.Target
		}
	}
	if len(group) > o.limit {
		return errors.New("OFPGMFC_OUT_OF_BUCKETS")
	}
	o.groups[p.Name()] = group
	return nil
}

// buckets returns the targets of a Service's group, sorted.
func (o *ovs) buckets(service string) (targets []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, target := range o.groups[model.PortName{Service: model.ServiceName{Namespace: "default", Name: service},
		Port: "http", Protocol: model.TCP}] {
		targets = append(targets, target.Addr().String())
	}
	slices.Sort(targets)
	return targets
}

func (o *ovs) takeTried() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	tried := o.tried
	o.tried = nil
	return tried
}

func (o *ovs) setLimit(limit int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.limit = limit
}

func TestADataplaneThatRefusesOneGroupHasTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &ovs{t: t, groups: map[model.PortName]map[int]netip.AddrPort{}, limit: 2}
		table, err := frontend.New(frontend.Options{Families: []model.Family{model.IPv4}, Apply: o.apply})
		require.NoError(t, err)
		src, proxy := newManual(), health.New(0)
		var refused []string
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: table, MinInterval: -1, ResyncInterval: -1,
			RetryInterval: time.Minute, Health: proxy,
			OnPortError: func(e *sink.PortError) { refused = append(refused, e.Error()) }})
		src.Update(set(service("db", "10.96.0.1"), slice("db", "10.1.0.1"),
			service("web", "10.96.0.2"), slice("web", "10.2.0.1"))...)
		src.Synced()
		synctest.Wait()
		assert.Equal(t, []string{"db", "web"}, o.takeTried())

		src.Update(set(slice("db", "10.1.0.1", "10.1.0.2"), slice("web", "10.2.0.2", "10.2.0.3", "10.2.0.4"))...)
		synctest.Wait()
		assert.Equal(t, []string{"db", "web"}, o.takeTried())
		assert.Equal(t, []string{"10.1.0.1", "10.1.0.2"}, o.buckets("db"), "the other one is applied")
		assert.Equal(t, []string{"10.2.0.1"}, o.buckets("web"), "this one stays as it was")
		assert.True(t, proxy.Healthy())

		src.Update(set(slice("db", "10.1.0.3"))...)
		synctest.Wait()
		assert.Equal(t, []string{"db"}, o.takeTried(), "nothing waits for it")
		time.Sleep(time.Hour)
		synctest.Wait()
		tried := o.takeTried()
		assert.Greater(t, len(tried), 60, "every minute")
		assert.NotContains(t, tried, "db")
		assert.Equal(t, []string{"service port default/web:http/TCP (IPv4): OFPGMFC_OUT_OF_BUCKETS"}, refused,
			"it is reported once")

		o.setLimit(3)
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, []string{"web"}, o.takeTried())
		assert.Equal(t, []string{"10.2.0.2", "10.2.0.3", "10.2.0.4"}, o.buckets("web"), "it is delivered again")

		o.setLimit(0) // what is refused can be deleted
		src.Update(set(slice("web", "10.2.0.5"))...)
		src.Update(watch.Change{Object: service("web", ""), Deleted: true})
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Empty(t, o.buckets("web"))
		assert.NotEmpty(t, o.buckets("db"))
		o.takeTried()
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.Empty(t, o.takeTried())
		require.NoError(t, stop())
	})
}
