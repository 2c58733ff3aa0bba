package nft_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// randomWorld changes a small cluster at random, in which services often want the same addresses.
type randomWorld struct {
	*rand.Rand
	r         *rig
	twin      *rig // to which nothing else happens than the same waves: who has an address depends on these
	endpoints map[model.ServiceName][]*model.Endpoint
}

func (w *randomWorld) chance(percent int) bool { return w.IntN(100) < percent }

func (w *randomWorld) set(values ...any) {
	w.r.Set(values...)
	w.twin.Set(values...)
}

func (w *randomWorld) delete(object any) {
	w.r.Delete(object)
	w.twin.Delete(object)
}

func (w *randomWorld) setNode() {
	n := fm.Node("n1").IP("192.0.2.10", "2001:db8::10")
	if w.chance(50) {
		n.IP("192.0.2.11")
	}
	if w.chance(50) {
		n.ServiceCIDR("10.96.0.0/12", "fd00:96::/112")
	}
	if w.chance(80) {
		n.LocalPods(model.LocalPods{CIDRs: []netip.Prefix{
			netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:244:1::/64")}})
	}
	w.set(n.Build())
}

func (w *randomWorld) change() {
	name := model.ServiceName{Namespace: "ns", Name: fmt.Sprintf("s%d", w.IntN(8))}
	switch eps := w.endpoints[name]; {
	case w.chance(3):
		w.setNode()
	case w.chance(15):
		w.delete(name)
		delete(w.endpoints, name)
	case eps != nil && w.chance(60):
		w.changeEndpoint(name)
	default:
		w.setService(name)
	}
}

func (w *randomWorld) changeEndpoint(name model.ServiceName) {
	eps := w.endpoints[name]
	if len(eps) > 0 && w.chance(50) {
		i := w.IntN(len(eps))
		w.delete(eps[i])
		w.endpoints[name] = append(eps[:i:i], eps[i+1:]...)
		return
	}
	target := fmt.Sprintf("10.244.%d.%d:80", 1+w.IntN(2), 1+w.IntN(6))
	if w.chance(30) {
		target = fmt.Sprintf("[fd00:244:%d::%d]:80", 1+w.IntN(2), 1+w.IntN(6))
	}
	ep := *fm.Endpoint(name.String()+":a/TCP", target).Build()
	ep.Local = w.chance(40)
	ep.Sets = model.EndpointSets(w.IntN(4))
	if !ep.Local {
		ep.Sets &= model.ClusterSet
	}
	w.set(&ep)
	for i, e := range eps {
		if e.Key() == ep.Key() {
			eps[i] = &ep
			return
		}
	}
	w.endpoints[name] = append(eps, &ep)
}

func (w *randomWorld) setService(name model.ServiceName) {
	n := int(name.Name[1] - '0')
	ips := []string{fmt.Sprintf("10.96.0.%d", 1+n), fmt.Sprintf("fd00:96::%d", 1+n)}
	if n == 7 && w.chance(50) {
		ips = []string{"172.30.0.8", "fd00:97::8"} // in no service CIDR
	}
	b := fm.Service(name.String()).ClusterIP(ips[:1+w.IntN(2)]...).Port("a", uint16(80+w.IntN(2)))
	for _, o := range []struct {
		percent int
		set     func() *fm.ServiceBuilder
	}{
		{40, func() *fm.ServiceBuilder { return b.ExternalIP(fmt.Sprintf("198.51.100.%d", 1+w.IntN(3))) }},
		{40, func() *fm.ServiceBuilder { return b.LoadBalancerIP(fmt.Sprintf("203.0.113.%d", 1+w.IntN(3))) }},
		{40, func() *fm.ServiceBuilder { return b.NodePort(uint16(30000 + w.IntN(3))) }},
		{40, b.InternalLocal}, {50, b.DetectsLocalPods}, {20, b.NoEndpoints}, {15, b.MasqueradeAll},
		{30, func() *fm.ServiceBuilder { return b.Affinity(time.Duration(1+w.IntN(2)) * time.Hour) }},
		{30, func() *fm.ServiceBuilder {
			return b.SourceRange("10.0.0.0/8", fmt.Sprintf("10.%d.0.0/16", w.IntN(3)), "192.0.2.0/25")
		}},
	} {
		if w.chance(o.percent) {
			o.set()
		}
	}
	svc := *b.Build()
	if len(svc.LoadBalancerIPs)+len(svc.ExternalIPs) > 0 && w.chance(50) {
		b.ExternalLocal()
		svc = *b.Build()
	}
	w.set(&svc)
	if w.endpoints[name] == nil {
		w.endpoints[name] = []*model.Endpoint{}
	}
}

// tamper does what another program might do to the table.
func (w *randomWorld) tamper() {
	tx := dataplane.NewTransaction(dataplane.TableKey{Family: model.IPv4, Name: nft.DefaultTableName})
	switch w.IntN(4) {
	case 0:
		tx.DeleteTable()
	case 1:
		tx.FlushChain("nat-postrouting")
	case 2:
		tx.AddRule("nat-prerouting", &dataplane.Rule{Statements: []dataplane.Statement{dataplane.Drop{}}})
	default:
		hairpin := &dataplane.Set{Name: "hairpin",
			Key: []dataplane.Field{dataplane.SourceAddr, dataplane.DestinationAddr}}
		a := dataplane.AppendAddr(nil, netip.AddrFrom4([4]byte{10, 9, 9, byte(w.IntN(256))}))
		tx.AddElements(hairpin, dataplane.Element{Key: string(append(a, a...))})
	}
	_ = w.r.fake.ApplyAsSomebodyElse(tx) // the table may not be there yet
}

// Whatever the changes are, however they are divided into waves, whatever fails in between and however often the
// backend is restarted: the tables end as they would if nothing of that had happened.
func TestAnyWayToAStateEndsInTheSameTables(t *testing.T) {
	seeds := uint64(15)
	if need.IsDeep() {
		seeds = 50
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			w := &randomWorld{Rand: rand.New(rand.NewPCG(seed, 0)),
				r: newRig(t, nft.Options{}), twin: newRig(t, nft.Options{}),
				endpoints: map[model.ServiceName][]*model.Endpoint{}}
			w.setNode()
			for range 40 {
				for range 1 + w.IntN(4) {
					w.change()
				}
				w.r.fail = nil
				if w.chance(10) {
					w.r.fail = func() error {
						if w.chance(50) {
							return errors.New("made to fail")
						}
						return nil
					}
				}
				if w.chance(10) {
					w.tamper()
					w.r.backend.ForceResync() // or the repair may come after the tables are read here
				}
				if w.chance(5) {
					w.r.Restart()
					w.twin.reset()
					w.twin.Restart()
				}
				w.twin.Sync()
				if err := w.r.TrySync(); err != nil {
					require.ErrorContains(t, err, "made to fail")
					continue
				}
				if w.r.fail != nil {
					w.r.fail = nil
					w.r.Sync() // what could not be removed
				}
				for _, f := range model.Families() {
					require.Equal(t, canonical(t, w.twin.dump(f)), canonical(t, w.r.dump(f)))
				}
			}
		})
	}
}
