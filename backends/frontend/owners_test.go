package frontend

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// claimant returns a service with the external IP 203.0.113.1 that was made in a year.
func claimant(name string, year int) *model.Service {
	b := fakemodel.Service(name).Port("http", 80).ExternalIP("203.0.113.1").UID(name)
	if year != 0 {
		b.Created(time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC))
	}
	return b.Build()
}

const contested = "203.0.113.1:80/TCP"

func TestTheIncumbentKeepsAnAddressWhateverTheNewcomersAgeAndName(t *testing.T) {
	r := newRig(t)
	r.set(claimant("prod/web", 2025))
	r.sync(t)
	r.set(claimant("aaa-evil/x", 2001))
	r.sync(t)
	assert.Equal(t, "prod/web", r.v4.owner(contested))
	assert.Equal(t, []string{"aaa-evil/x:http/TCP"}, r.v4.told, "the newcomer alone: its cluster IP is served")

	r.DeleteService(model.ServiceName{Namespace: "prod", Name: "web"})
	r.sync(t)
	assert.Equal(t, "aaa-evil/x", r.v4.owner(contested), "it gets the address when the owner goes")
}

func TestTheOwnerKeepsAnAddressWhileItChangesElsewhere(t *testing.T) {
	r := newRig(t)
	r.set(claimant("prod/web", 2025))
	r.sync(t)
	changed := *claimant("prod/web", 2025)
	changed.Labels = map[string]string{"a": "b"}
	changed.LoadBalancerIPs, changed.ExternalIPs = changed.ExternalIPs, nil
	r.set(claimant("old/x", 2001), &changed)
	r.sync(t)
	assert.Equal(t, "prod/web", r.v4.owner(contested))
}

// The owner of an address renames a port, and keeps the address.
func TestAServiceThatRenamesAPortKeepsItsAddress(t *testing.T) {
	r := newRig(t)
	r.set(claimant("prod/web", 2025))
	r.sync(t)
	r.set(claimant("old/x", 2001))
	r.sync(t)
	for _, name := range []string{"web", "http", "web"} {
		renamed := *claimant("prod/web", 2025)
		renamed.Ports = slices.Clone(renamed.Ports)
		renamed.Ports[0].Name = name
		r.set(&renamed)
		r.sync(t)
		assert.Equal(t, "prod/web", r.v4.owner(contested))
	}
	r.DeleteService(model.ServiceName{Namespace: "prod", Name: "web"})
	r.sync(t)
	assert.Equal(t, "old/x", r.v4.owner(contested))
}

type services []*model.Service

func TestAmongNewcomersTheOldestGetsAnAddress(t *testing.T) {
	for name, test := range map[string]struct {
		services services
		owner    string
	}{
		"whoever is told first":            {services{claimant("a/young", 2025), claimant("b/old", 2001)}, "b/old"},
		"in the other order":               {services{claimant("b/old", 2001), claimant("a/young", 2025)}, "b/old"},
		"a service of unknown age is last": {services{claimant("a/unknown", 0), claimant("b/young", 2025)}, "b/young"},
		"by name among those of one age":   {services{claimant("b/one", 2025), claimant("a/two", 2025)}, "a/two"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			for _, s := range test.services {
				r.set(s)
			}
			r.sync(t)
			assert.Equal(t, test.owner, r.v4.owner(contested))
		})
	}
}

func TestAClusterIPIsItsServicesOwn(t *testing.T) {
	r := newRig(t)
	r.set(claimant("evil/x", 2001))
	r.sync(t)
	r.set(fakemodel.Service("prod/web").ClusterIP("203.0.113.1").Port("http", 80).Build())
	r.sync(t)
	assert.Equal(t, "prod/web", r.v4.owner(contested))
}

func TestAServiceThatWasMadeAgainIsNoIncumbent(t *testing.T) {
	r := newRig(t)
	r.set(claimant("prod/web", 2025))
	r.sync(t)
	r.set(claimant("other/x", 2024))
	r.sync(t)
	again := *claimant("prod/web", 2026)
	again.UID = "another"
	r.set(&again)
	r.sync(t)
	assert.Equal(t, "other/x", r.v4.owner(contested))
}

// The second is the same, by UID, as before: the time says that it is another one.
func TestAServiceOfAnotherTimeIsNoIncumbent(t *testing.T) {
	r := newRig(t)
	r.set(claimant("prod/web", 2025))
	r.sync(t)
	r.set(claimant("other/x", 2024))
	r.sync(t)
	r.set(claimant("prod/web", 2026))
	r.sync(t)
	assert.Equal(t, "other/x", r.v4.owner(contested))
}

// An address has an owner, and no other service asks for it until an older one does, in the wave in which the owner
// gives its number to another of its ports.
func TestANumberGoesToAnotherPortInTheWaveOfAnOlderNewcomer(t *testing.T) {
	changed := *claimant("prod/web", 2025)
	changed.Ports = []model.ServicePort{changed.Ports[0], changed.Ports[0]}
	changed.Ports[0].Port, changed.Ports[1].Name = 81, "web"
	for name, wave := range map[string]services{
		"the newcomer comes first": {claimant("old/x", 2001), &changed},
		"the newcomer comes last":  {&changed, claimant("old/x", 2001)},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.set(claimant("prod/web", 2025))
			r.sync(t)
			for _, s := range wave {
				r.set(s)
			}
			r.sync(t)
			assert.Equal(t, "prod/web", r.v4.owner(contested))
		})
	}
}

// A key that many want passes from one to the next at the cost of telling few of them.
func TestTheFirstInLineAreToldOfAnotherOwner(t *testing.T) {
	r := newRig(t)
	for i := range 2 * maxTold {
		r.set(claimant(fmt.Sprintf("a/%02d", i), 2001+i))
	}
	r.sync(t)
	assert.Len(t, r.problems, 2*maxTold-1, "newcomers are told, all of them")
	r.problems = nil
	r.DeleteService(model.ServiceName{Namespace: "a", Name: "00"})
	r.sync(t)
	assert.Equal(t, "a/01", r.v4.owner(contested))
	var told []string
	for _, p := range r.problems {
		assert.Equal(t, "01", p.Owner.Service.Name)
		told = append(told, p.Port.Service.Name)
	}
	assert.Equal(t, []string{"02", "03", "04", "05", "06", "07", "08", "09"}, told)
}

func TestAnIncumbentStaysOneThroughAResync(t *testing.T) {
	r := newRig(t)
	r.set(claimant("prod/web", 2025))
	r.sync(t)
	r.set(claimant("old/x", 2001))
	r.ForceResync()
	r.sync(t)
	assert.Equal(t, "prod/web", r.v4.owner(contested))
}

func TestALoserIsToldOnceForEachOwner(t *testing.T) {
	r := newRig(t)
	b := fakemodel.Service("b/x").Port("http", 80).ExternalIP("203.0.113.1", "203.0.113.2", "203.0.113.3")
	r.set(fakemodel.Service("a/x").Port("http", 80).ExternalIP("203.0.113.1", "203.0.113.2").Build(), b.Build())
	r.sync(t)
	http := func(namespace string) model.PortName {
		name := model.ServiceName{Namespace: namespace, Name: "x"}
		return model.PortName{Service: name, Port: "http", Protocol: model.TCP}
	}
	want := Problem{Family: model.IPv4, Port: http("b"), Reason: AddressInUse, Owner: http("a"),
		Message: "203.0.113.1:80/TCP and 1 more belong to a/x:http/TCP"}
	assert.Equal(t, []Problem{want}, r.problems)

	r.set(b.Label("a", "b").Build())
	r.ForceResync()
	r.sync(t)
	assert.Len(t, r.problems, 1, "it has been told")

	r.DeleteService(model.ServiceName{Namespace: "a", Name: "x"})
	r.sync(t)
	r.set(fakemodel.Service("a/x").Port("http", 80).ExternalIP("203.0.113.3").Build())
	r.sync(t)
	assert.Len(t, r.problems, 2, "now the other one has lost")
}
