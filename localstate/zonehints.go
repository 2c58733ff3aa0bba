package localstate

import "strings"

// zoneHints counts, for each zone, the slices with a hint that names it. It is kept once ChangedZones has been called.
type zoneHints struct {
	slices  map[string]int
	changed map[string]struct{} // zones that are named and were not at the last call of ChangedZones, or the reverse
}

// ChangedZones returns the zones that a topology hint names since the last call (true), and those that none names any
// more (false). The first call returns all that are named. On a node in a zone that no hint names everything is as on a
// node without a zone (S22), so one [Class] can serve both. Hints of all slices that count are looked at, also of those
// whose Service is not served and of endpoints that are not ready: such a zone may turn out to make no difference.
func (s *State) ChangedZones() map[string]bool {
	if s.zoneHints == nil {
		s.zoneHints = &zoneHints{slices: map[string]int{}, changed: map[string]struct{}{}}
		for _, svc := range s.services {
			for _, slice := range svc.slices {
				s.zoneHints.count(slice, 1)
			}
		}
	}
	z := s.zoneHints
	if len(z.changed) == 0 {
		return nil
	}
	changed := make(map[string]bool, len(z.changed))
	for zone := range z.changed {
		changed[zone] = z.slices[zone] > 0
	}
	z.changed = map[string]struct{}{}
	return changed
}

// count counts the zones that a slice names, or no longer does (sign -1).
func (z *zoneHints) count(slice *sliceIntake, sign int) {
	if z == nil || !slice.hinted {
		return
	}
	lists, zones := map[string]struct{}{}, map[string]struct{}{}
	last := ""
	for _, p := range slice.places {
		hints := p.Value().zoneHints
		if hints == last {
			continue // usually
		}
		last = hints
		if _, known := lists[hints]; known {
			continue
		}
		lists[hints] = struct{}{}
		for _, zone := range splitHints(hints) {
			zones[zone] = struct{}{}
		}
	}
	for zone := range zones {
		z.add(zone, sign)
	}
}

func (z *zoneHints) add(zone string, sign int) {
	before := z.slices[zone]
	if before == 0 {
		zone = strings.Clone(zone) // it is a part of a list that may be long
	}
	if now := before + sign; now > 0 {
		z.slices[zone] = now
	} else {
		delete(z.slices, zone)
	}
	if before > 0 && before+sign > 0 {
		return
	}
	if _, is := z.changed[zone]; is {
		delete(z.changed, zone) // it is again as it was
	} else {
		z.changed[zone] = struct{}{}
	}
}
