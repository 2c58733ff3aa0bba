package frontend

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"
)

// shared is what the ports of a service have in common in one family.
type shared struct {
	table    *Table
	service  *service
	family   *family
	affinity time.Duration
	ranges   []netip.Prefix // none if they are too many
	tooMany  bool           // source ranges: the load-balancer IPs are not served
	// hasRefusedVIPs: there are such IPs.
	hasRefusedVIPs bool
	addrs          addresses // once they are needed
	hasAddrs       bool
}

func (t *Table) sharedBy(s *service, f *family) shared {
	h := shared{table: t, service: s, family: f, ranges: s.object.SourceRanges(f.family)}
	if timeout := s.object.SessionAffinityTimeout; timeout > 0 {
		h.affinity = max(timeout, time.Second)
	}
	if h.tooMany = len(h.ranges) > t.budget.Service.SourceRanges; h.tooMany {
		h.ranges, h.hasRefusedVIPs = nil, hasVIP(f.family, s.object)
	}
	if len(h.ranges) == 0 {
		return h
	}
	for _, p := range s.ports.all { // ports that share a slice are compared at once
		if p.family == f && p.current != nil && len(p.current.SourceRanges) > 0 {
			if slices.Equal(p.current.SourceRanges, h.ranges) {
				h.ranges = p.current.SourceRanges
			}
			break
		}
	}
	return h
}

// wanted returns a port as it is wanted, if all of it is served.
func (h *shared) wanted(p *port) Port {
	wanted := Port{Name: p.name, Routes: *p.spec.Routes.At(h.family.family), AffinityTimeout: h.affinity}
	if wanted.Routes.External.Endpoints != 0 {
		wanted.SourceRanges = h.ranges
	}
	if h.table.options.Extra != nil {
		wanted.Extra = h.table.options.Extra(h.service.object)
	}
	return wanted
}

// frontends returns the frontends that a port asks for, at most limit, and notes how many others there are.
func (h *shared) frontends(p *port, wanted *Port, limit int) []Frontend {
	if !h.hasAddrs {
		h.addrs, h.hasAddrs = addressesOf(h.family.family, h.service.object, !h.tooMany), true
	}
	asked, omitted := frontends(&h.addrs, p.spec, wanted, limit)
	p.omitted = int32(min(omitted, math.MaxInt32))
	return asked
}

// update updates a port, after deciding whether it is served.
func (h *shared) update(ctx context.Context, p *port, wanted *Port, asked []Frontend) {
	found := h.problems(p)
	for _, problem := range found {
		h.table.found(ctx, h.service, problem)
	}
	if h.family.excesses.note(p, found); p.excess.refuses() || p.spec.TooManyEndpoints {
		p.remove()
		return
	}
	if p.excess.deniesAffinity() {
		wanted.AffinityTimeout = 0
	}
	p.update(*wanted, asked)
}

// problems returns why a port, or a part of it, is not served, as far as limits are the reason.
func (h *shared) problems(p *port) (found []Problem) {
	problem := Problem{Family: h.family.family, Port: p.name}
	if h.hasRefusedVIPs && p.spec.Routes.At(h.family.family).External.Endpoints != 0 {
		problem.Reason, problem.Message = TooManySourceRanges, fmt.Sprintf(
			"its load-balancer IPs are not served: a service may have %d source ranges", h.table.budget.Service.SourceRanges)
		found = append(found, problem)
	}
	if p.omitted > 0 {
		problem.Reason, problem.Message = TooManyFrontends, fmt.Sprintf(
			"%d of its addresses are not served: a service may have %d frontends", p.omitted, h.table.budget.Service.Frontends)
		found = append(found, problem)
	}
	if p.excess != noExcess {
		found = append(found, p.excess.problem(p, &h.table.budget.Limits))
	}
	if p.spec.TooManyEndpoints {
		problem.Reason, problem.Message = TooManyEndpoints, "it is not served: its service, or the services of its "+
			"namespace together, have too many addresses times ports"
		found = append(found, problem)
	}
	return found
}

// updateDecided updates the ports of a service for which the decision whether they are served, and with affinity, has
// changed. The service itself has not changed.
func (t *Table) updateDecided(ctx context.Context, s *service, f *family, decided []*port) {
	h := t.sharedBy(s, f)
	for _, p := range decided {
		wanted, asked := h.wanted(p), p.asked
		if p.current == nil {
			asked = h.frontends(p, &wanted, int(p.demand)) // its share of what the service may have, as decided before
		}
		h.update(ctx, p, &wanted, asked)
	}
}
