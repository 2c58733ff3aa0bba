package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// lease excludes other judges from a cluster.
type lease struct {
	client coordinationclient.LeaseInterface
	now    *coordinationv1.Lease // the version last written
	keeper sync.WaitGroup
}

const (
	// renewInterval is the interval for renewing the lease and checking the cluster.
	renewInterval = 2 * time.Second
	// leaseDuration is how long a lease is respected without being renewed.
	leaseDuration = 15 * time.Second
	// goneTimeout is how long the API server may be unreachable.
	goneTimeout = time.Minute
)

// takeLease takes the lease, if necessary from a judge that has stopped renewing it.
func takeLease(ctx context.Context, client kubernetes.Interface, run string, say func(string)) (*lease, error) {
	l := &lease{client: client.CoordinationV1().Leases(metav1.NamespaceDefault)}
	host, _ := os.Hostname()
	holder := fmt.Sprintf("%s, process %d, run %s", host, os.Getpid(), run)
	seconds := int32(leaseDuration / time.Second)
	mine := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: objectName, Namespace: metav1.NamespaceDefault},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds}}
	taken, err := l.client.Create(ctx, mine, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		taken, err = l.succeed(ctx, mine, say)
	}
	l.now = taken
	return l, err
}

// succeed takes over the lease of a judge that was killed.
func (l *lease) succeed(ctx context.Context, mine *coordinationv1.Lease, say func(string)) (
	*coordinationv1.Lease, error) {
	old, err := l.client.Get(ctx, objectName, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	say(fmt.Sprintf("another judge has the cluster (%s): wait up to %v to see whether it still runs", holder(old),
		leaseDuration))
	for range leaseDuration / renewInterval {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(renewInterval):
		}
		now, err := l.client.Get(ctx, objectName, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		if now.ResourceVersion != old.ResourceVersion {
			return nil, fmt.Errorf("another judge uses the cluster (%s)", holder(now))
		}
	}
	mine.ResourceVersion = old.ResourceVersion
	taken, err := l.client.Update(ctx, mine, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) {
		return nil, errors.New("another judge has just taken the cluster")
	}
	return taken, err
}

// holder describes the holder of a lease.
func holder(l *coordinationv1.Lease) string {
	if l.Spec.HolderIdentity == nil {
		return "nobody"
	}
	return *l.Spec.HolderIdentity
}

// keep renews the lease until the context ends, and checks each time that no other program uses the cluster. It calls
// fail if one does, or if the API server is unreachable for too long.
func (l *lease) keep(ctx context.Context, check func(context.Context) error, fail func(error)) {
	l.keeper.Go(func() {
		answered := time.Now()
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(renewInterval):
			}
			err := l.renew(ctx)
			if err == nil {
				err = check(ctx)
			}
			switch {
			case err == nil:
				answered = time.Now()
			case !isTransient(err):
				fail(err)
				return
			case time.Since(answered) > goneTimeout:
				fail(fmt.Errorf("the API server has not answered for %v: %w", goneTimeout, err))
				return
			}
		}
	})
}

// renew updates the lease.
func (l *lease) renew(ctx context.Context) error {
	next := l.now.DeepCopy()
	now := metav1.NowMicro()
	next.Spec.RenewTime = &now
	renewed, err := l.client.Update(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) { // perhaps with an earlier request of this run whose answer was lost
		if renewed, err = l.client.Get(ctx, objectName, metav1.GetOptions{}); err == nil && holder(renewed) != holder(next) {
			return fmt.Errorf("another judge has taken the cluster (%s)", holder(renewed))
		}
	}
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("somebody has deleted the Lease %s/%s of this run", metav1.NamespaceDefault, objectName)
	}
	if err == nil {
		l.now = renewed
	}
	return err
}

// wait waits until keep has returned.
func (l *lease) wait() { l.keeper.Wait() }

// release deletes the lease, unless another judge has taken it.
func (l *lease) release(ctx context.Context) {
	now, err := l.client.Get(ctx, objectName, metav1.GetOptions{}) // not l.now: an answer may have been lost
	if err != nil || holder(now) != holder(l.now) {
		return
	}
	_ = l.client.Delete(ctx, objectName,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &now.ResourceVersion}})
}
