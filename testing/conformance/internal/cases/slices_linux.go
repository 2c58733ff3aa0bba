package cases

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// sliceCases cover EndpointSlices that change without a pause.
func sliceCases() []Case {
	return []Case{
		{Name: "an EndpointSlice whose name changes loses no connection", Rules: "S17", run: slicesChangeNames},
		{Name: "endpoints that stay lose no connection while others come and go all the time", Rules: "S46",
			run: endpointsStayInChurn},
		{Name: "endpoints that stay lose no connection at a hundred and at a thousand changes a second", Rules: "S46",
			run: endpointsStayInRollouts},
	}
}

func slicesChangeNames(ctx context.Context, b *bed) error {
	web := func(prefix string, places ...string) service {
		return external(service{SlicePrefix: prefix, Endpoints: cluster.At(places...)})
	}
	stays := []string{localPod1, remotePod1}
	if err := b.Put(ctx, web("", stays...)); err != nil {
		return err
	}
	open, err := b.stand(b.flows(web(""), model.TCP, paths(fromAll, everywhere)))
	if err != nil {
		return err
	}
	defer open.close()
	st := b.startStream(web(""), stays...)
	err = st.during(func() error {
		for _, prefix := range []string{"new-", "", "a-"} { // the new slice is created, then the old one deleted
			if err := b.Put(ctx, web(prefix, stays...)); err != nil {
				return err
			}
			if err := st.await(ctx, 3); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("while slices got other names:\n\n%w", err)
	}
	for _, prefix := range []string{"z-", ""} { // the other way round, which may refuse connections for a moment
		if err := b.writeOnly(ctx, web("")); err != nil {
			return err
		}
		err := b.step(ctx, stepOf(web(prefix, stays...)))
		if err == nil {
			err = open.check(b.Timeouts)
		}
		if err != nil {
			return fmt.Errorf("after the old slice went, and the new one came:\n\n%w", err)
		}
	}
	return nil
}

// The churn: endpoints change every churnEvery, for churnFor.
const (
	churnEvery = 50 * time.Millisecond
	churnFor   = 6 * time.Second
)

func endpointsStayInChurn(ctx context.Context, b *bed) error {
	tcp := []servicePort{{Protocol: model.TCP}}
	web := func(others ...string) service {
		return external(service{Slot: 1, Ports: tcp,
			Endpoints: append(cluster.At(localPod1, remotePod1), cluster.At(others...)...)})
	}
	other := func(places ...string) service {
		return external(service{Name: "other", Slot: 2, Endpoints: cluster.At(places...)})
	}
	if err := b.Put(ctx, web()); err != nil {
		return err
	}
	open, err := b.stand(b.flows(web(), model.TCP, paths(fromAll, everywhere)))
	if err != nil {
		return err
	}
	defer open.close()
	st := b.startStream(web(), localPod1, localPod2, remotePod1, remotePod2)
	err = st.during(func() error {
		pace := time.NewTicker(churnEvery)
		defer pace.Stop()
		for n := range int(churnFor / churnEvery) {
			services := [][]service{{web()}, {web(localPod2), other(remotePod2)}, {web(localPod2, remotePod2), other()},
				{web(remotePod2), other(localPod1)}}[n%4]
			if err := b.writeOnly(ctx, services...); err != nil {
				return err
			}
			select {
			case <-pace.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := b.step(ctx, stepOf(web(remotePod2), other(localPod2))); err != nil {
			return err
		}
		return st.await(ctx, 3)
	})
	if err != nil {
		return fmt.Errorf("while other endpoints came and went:\n\n%w", err)
	}
	return open.check(b.Timeouts)
}

// The rollouts: at up to each of rolloutRates, in endpoints a second, endpoints of each of rolloutServices services are
// added, replaced or removed in turn for rolloutFor, as in a rolling update of many Deployments. Every rolloutEvery
// some are written: a server that takes longer makes the rate lower.
const (
	rolloutServices = 50
	rolloutFor      = 3 * time.Second
	rolloutEvery    = 50 * time.Millisecond
)

func rolloutRates() []int { return []int{100, 1000} }

// endpointsStayInRollouts asks for the last state alone: a program need not follow each change, nor at once.
func endpointsStayInRollouts(ctx context.Context, b *bed) error {
	tcp := []servicePort{{Protocol: model.TCP}}
	others := [][]string{nil, {localPod2}, {remotePod2}, {localPod2, remotePod2}}
	app := func(index, changes int) service {
		return external(service{Name: fmt.Sprintf("app-%d", index), Slot: 1 + index, Ports: tcp,
			Endpoints: cluster.At(append([]string{localPod1, remotePod1}, others[changes%len(others)]...)...)})
	}
	var apps []service
	var flows []network.Attempt
	for i := range rolloutServices {
		apps = append(apps, app(i, 0))
		flows = append(flows, b.flows(apps[i], model.TCP, []path{{localPod3, toClusterIP}, {client, toVIP}})...)
	}
	if err := b.step(ctx, stepOf(apps...)); err != nil {
		return err
	}
	open, err := b.stand(flows)
	if err != nil {
		return err
	}
	defer open.close()
	st := b.startStreams(apps, localPod1, localPod2, remotePod1, remotePod2)
	return st.during(func() error {
		changes := 0
		for _, rate := range rolloutRates() {
			pace, over := time.NewTicker(rolloutEvery), time.After(rolloutFor)
			defer pace.Stop()
			for going := true; going; {
				for range rate * int(rolloutEvery/time.Millisecond) / 1000 {
					i := changes % len(apps)
					apps[i] = app(i, 1+changes/len(apps))
					changes++
				}
				if err := b.writeOnly(ctx, apps...); err != nil {
					return err
				}
				select {
				case <-pace.C:
				case <-over:
					going = false
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			err := b.patiently(ctx, stepOf(apps...))
			if err == nil {
				err = st.await(ctx, 3)
			}
			if err == nil {
				err = open.check(b.Timeouts)
			}
			if err != nil {
				return fmt.Errorf("with %d changes a second:\n\n%w", rate, err)
			}
		}
		return nil
	})
}
