package frontend

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// follow returns which services have problems, as it is reported.
func (r *rig) follow() map[model.ServiceName]bool {
	reported := map[model.ServiceName]bool{}
	r.ReportProblems(func(name model.ServiceName, any bool) {
		if reported[name] = any; !any {
			delete(reported, name)
		}
	})
	return reported
}

// compareReport compares what is reported with what the table has.
func (r *rig) compareReport(t *testing.T, reported map[model.ServiceName]bool) {
	want, has := map[waiting]bool{}, map[waiting]bool{}
	lines := map[model.ServiceName]int{}
	for _, f := range r.families {
		for k, h := range f.owners.byKey {
			if h.contest == nil {
				continue
			}
			for _, rival := range h.contest.rivals {
				want[waiting{rival.port, k}] = true
				lines[rival.port.name.Service] = 1
			}
		}
	}
	for _, lost := range r.reporter.losses {
		maps.Copy(has, lost)
	}
	assert.Equal(t, want, has)
	for _, s := range r.services {
		var texts []string
		for p, found := range s.problems {
			if p.Reason != InvalidEndpoint {
				texts = append(texts, found.message)
			}
		}
		slices.Sort(texts)
		if n := len(slices.Compact(texts)); n > 0 {
			lines[s.name] += n
		}
	}
	got := map[model.ServiceName]int{}
	for name := range reported {
		got[name] = len(r.Problems(name))
	}
	assert.Equal(t, lines, got)
}

// followContests returns the owners of what is contested, as they are reported. Nothing is reported twice.
func (r *rig) followContests(t *testing.T) map[model.Family]map[Key]model.PortName {
	owners := map[model.Family]map[Key]model.PortName{model.IPv4: {}, model.IPv6: {}}
	r.ReportContests(func(c sink.Contest) {
		k := Key{c.Destination.Addr(), c.Destination.Port(), c.Protocol}
		before, known := owners[c.Family][k]
		if c.Owner == (model.PortName{}) {
			assert.True(t, known, k)
			delete(owners[c.Family], k)
			return
		}
		assert.NotEqual(t, before, c.Owner, k)
		owners[c.Family][k] = c.Owner
	})
	return owners
}

// followExternal returns the ports that have lost all external addresses, as they are reported. Nothing is reported
// twice.
func (r *rig) followExternal(t *testing.T) map[string]bool {
	lost := map[string]bool{}
	r.ReportExternal(func(port model.PortName, f model.Family, owns bool) {
		name := fmt.Sprint(port, f)
		assert.Equal(t, owns, lost[name], name)
		if lost[name] = !owns; owns {
			delete(lost, name)
		}
	})
	return lost
}

// compareExternal compares what is reported with the owners of what ports ask for.
func (r *rig) compareExternal(t *testing.T, lost map[string]bool) {
	want := map[string]bool{}
	for _, s := range r.services {
		for _, p := range s.ports.all {
			asks, owns := false, false
			for _, fr := range p.asked {
				if fr.Kind != ClusterIP {
					asks, owns = true, owns || p.family.owners.owner(fr.Key) == p
				}
			}
			if asks && !owns {
				want[fmt.Sprint(p.name, p.family.family)] = true
			}
		}
	}
	assert.Equal(t, want, lost)
}

func TestAContestIsReportedWhenItBeginsEndsOrHasAnotherOwner(t *testing.T) {
	r := newRig(t)
	owners := r.followContests(t)[model.IPv4]
	web := model.ServiceName{Namespace: "prod", Name: "web"}
	owner := func() string {
		assert.LessOrEqual(t, len(owners), 1)
		for k, name := range owners {
			assert.Equal(t, contested, k.String())
			return name.Service.String()
		}
		return ""
	}
	r.set(claimant(web.String(), 2025))
	r.sync(t)
	assert.Empty(t, owner(), "nobody else asks for it")
	r.set(claimant("old/x", 2001))
	r.sync(t)
	assert.Equal(t, web.String(), owner())
	again := *claimant(web.String(), 2026)
	again.UID = "another"
	r.set(&again)
	r.sync(t)
	assert.Equal(t, "old/x", owner())
	r.DeleteService(web)
	r.sync(t)
	assert.Empty(t, owner())
	r.set(fakemodel.Service(web.String()).ClusterIP("203.0.113.1").Port("http", 80).Build())
	r.sync(t)
	assert.Equal(t, web.String(), owner(), "it is its cluster IP")
	r.DeleteService(web)
	r.DeleteService(model.ServiceName{Namespace: "old", Name: "x"})
	r.sync(t)
	assert.Empty(t, owner())
}

// A part that is not served is reported until it is served, with the present owner (S59).
func TestProblemsAreReportedUntilTheyEnd(t *testing.T) {
	r := newRig(t)
	reported := r.follow()
	r.set(claimant("prod/web", 2025), claimant("x/younger", 2026))
	r.sync(t)
	younger := model.ServiceName{Namespace: "x", Name: "younger"}
	assert.Equal(t, map[model.ServiceName]bool{younger: true}, reported)
	assert.Equal(t, []string{contested + " belongs to prod/web:http/TCP"}, r.Problems(younger))

	for i := range 20 { // more than are told once again
		r.set(claimant(fmt.Sprintf("y/s%02d", i), 2027))
	}
	r.sync(t)
	assert.Len(t, reported, 21)
	r.DeleteService(model.ServiceName{Namespace: "prod", Name: "web"})
	told := 0
	report := r.reporter.report
	r.reporter.report = func(name model.ServiceName, any bool) { told++; report(name, any) }
	r.sync(t)
	assert.LessOrEqual(t, told, 2, "whoever got the address, not all who wait for it")
	assert.Len(t, reported, 20)
	assert.NotContains(t, reported, younger, "it has the address now")
	assert.Equal(t, []string{contested + " belongs to x/younger:http/TCP"},
		r.Problems(model.ServiceName{Namespace: "y", Name: "s19"}))

	last := *claimant("y/s19", 2027)
	last.ExternalIPs = nil
	r.set(&last)
	r.sync(t)
	assert.Len(t, reported, 19, "who no longer asks has no problem")

	invalid := *claimant("prod/web", 2025)
	invalid.ExternalIPs = nil
	invalid.Ports = append(slices.Clone(invalid.Ports), invalid.Ports[0])
	invalid.Ports[1].Name, invalid.Ports[1].Port = "zero", 0
	r.set(&invalid)
	r.sync(t)
	assert.Equal(t, []string{"it has no port number or protocol"}, r.Problems(invalid.Name))
	valid := invalid
	valid.Ports = invalid.Ports[:1]
	r.set(&valid)
	r.sync(t)
	assert.NotContains(t, reported, invalid.Name)
}
