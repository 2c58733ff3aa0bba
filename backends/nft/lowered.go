package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/failures"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// The rules of a service port give its affinity timeout (S32) to clients that open a connection; all others keep the
// one that they have. So after a timeout was lowered, the set of clients is read, and clients that would stay for
// longer than the new timeout are given that, from then on. Nobody loses an endpoint for that: a client that opens its
// next connection within the new timeout still finds it. After a timeout was raised, nothing has to be done: the
// entries of clients that do not return time out as before.
//
// A set may have 65,535 clients, and a service whose timeout changes every second must not make others wait. So there
// are batches: one reads sets until it has read clientsOfBatch elements, at least one set. The first batch belongs to
// the Sync that lowers the timeout; the backend does the others in the background. After each it pauses for nine times
// as long.
const (
	clientsOfBatch = 1 << 14
	// clientsOfTransaction is how many clients a transaction gives a timeout. It fits into the smallest socket buffer.
	clientsOfTransaction = 400
	pauseAfterBatch      = 9
	pauseAfterFailure    = time.Second
)

// loweredTimeouts has the sets of clients where some may have a longer timeout than their service port.
type loweredTimeouts struct {
	sets      []*loweredSet // the next one first
	notBefore time.Time     // when the next batch may begin
	timer     *time.Timer
	failing   failures.Lines
}

// loweredSet is one of these sets.
type loweredSet struct {
	name    string
	ports   map[model.PortName]bool // whose timeouts were lowered
	partial int                     // how often it was read without finding anybody, while some may have been left out
}

// maxPartial is the limit of loweredSet.partial. While rules keep adding clients, no list is complete.
const maxPartial = 5

// add adds the service ports of a plan, whose rules have the new timeouts by now.
func (l *loweredTimeouts) add(p *plan) {
	for _, port := range p.lowered {
		name := p.base.own[port].clients.Name
		i := slices.IndexFunc(l.sets, func(s *loweredSet) bool { return s.name == name })
		if i < 0 {
			i = len(l.sets)
			l.sets = append(l.sets, &loweredSet{name: name, ports: map[model.PortName]bool{}})
		}
		l.sets[i].ports[port], l.sets[i].partial = true, 0
	}
}

// lowerTimeouts does a batch if one is due, and makes the backend check when the next one is. What fails is tried
// again. It is not a failure of the Sync: all rules are right.
func (f *family) lowerTimeouts(ctx context.Context) {
	l := &f.lowered
	if len(l.sets) == 0 || f.state != known && f.state != leftovers {
		return // in any other state, comparing the table comes first, which calls it again
	}
	if began := time.Now(); !began.Before(l.notBefore) {
		err := f.lowerBatch(ctx)
		now := time.Now()
		pause := pauseAfterBatch * now.Sub(began)
		if err != nil {
			pause = max(pause, pauseAfterFailure)
			if ctx.Err() == nil && !errors.Is(err, dp.ErrStale) && l.failing.Due(err.Error(), now) {
				klog.FromContext(ctx).Info("Cannot lower the affinity timeout of clients yet; trying again", "table", f.key,
					"reason", err)
			}
		}
		l.notBefore = now.Add(pause)
	}
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	if len(l.sets) > 0 {
		l.timer = time.AfterFunc(time.Until(l.notBefore), func() {
			select {
			case f.again <- struct{}{}:
			default: // it is about to check anyway
			}
		})
	}
}

// lowerBatch reads sets until it has read clientsOfBatch elements.
func (f *family) lowerBatch(ctx context.Context) error {
	l := &f.lowered
	for read := 0; len(l.sets) > 0 && read < clientsOfBatch; {
		s := l.sets[0]
		n, done, err := f.lowerIn(ctx, s)
		read += n
		if l.sets = l.sets[1:]; !done {
			l.sets = append(l.sets, s)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// lowerIn gives the clients of a set that would stay for too long the timeouts of their service ports. It returns how
// many elements it has read, and is done when it has found no such client in a complete list, or in maxPartial
// incomplete ones.
func (f *family) lowerIn(ctx context.Context, l *loweredSet) (read int, done bool, err error) {
	var set *dp.Set
	timeouts := map[uint32]time.Duration{} // by the numbers that stand for the ports, 0 if the set has only one
	for port := range l.ports {
		own := f.table.own[port]
		if !own.isSticky() || own.clients.Name != l.name {
			continue // it has left the set meanwhile
		}
		if set = own.clients; isShared(set) {
			timeouts[own.scope] = own.affinity
		} else {
			timeouts[0] = own.affinity
		}
	}
	if set == nil {
		return 0, true, nil
	}
	tooLong := map[time.Duration][]dp.Element{} // by the timeouts that they should have
	complete, err := f.dataplane.ReadDynamic(ctx, f.key, set, func(e dp.Element, left time.Duration) {
		read++
		if timeout, lowered := timeouts[portIn(set, e.Key)]; lowered && left > timeout {
			tooLong[timeout] = append(tooLong[timeout], e)
		}
	})
	switch {
	case err != nil:
		return read, false, err
	case len(tooLong) == 0:
		l.partial++
		return read, complete || l.partial == maxPartial, nil
	}
	l.partial = 0
	tx := dp.NewTransaction(f.key)
	for timeout, elements := range tooLong {
		for len(elements) > 0 {
			n := min(len(elements), clientsOfTransaction-tx.Elements()/2)
			tx.DeleteElements(set, elements[:n]...)
			tx.AddDynamic(set, timeout, elements[:n]...)
			if elements = elements[n:]; tx.Elements()/2 < clientsOfTransaction {
				continue
			}
			if err := f.dataplane.Apply(ctx, tx); err != nil {
				return read, false, err
			}
			tx = dp.NewTransaction(f.key)
		}
	}
	if !tx.IsEmpty() {
		err = f.dataplane.Apply(ctx, tx)
	}
	return read, false, err
}

// isShared reports whether several service ports may have clients in a set.
func isShared(s *dp.Set) bool { return slices.Contains(s.Key, dp.Scope) }

// portIn returns the number that stands for a service port in a key, 0 if the set has only one.
func portIn(s *dp.Set, key string) uint32 {
	const numbers = 8 // of the port, and of the endpoint
	if !isShared(s) || len(key) < numbers {
		return 0
	}
	return binary.NativeEndian.Uint32([]byte(key[len(key)-numbers:]))
}

// givesTimeout reports whether a rule gives clients the affinity timeout of a service port.
func givesTimeout(r dp.Rule) bool {
	return slices.ContainsFunc(r.Statements, func(s dp.Statement) bool {
		_, refreshes := s.(dp.Refresh)
		return refreshes
	})
}
