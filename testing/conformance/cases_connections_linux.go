package conformance

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// connectionCases cover established and new connections while endpoints change.
func connectionCases() []testCase {
	stays := external(service{endpoints: at(localPod1)})
	leave := external(service{endpoints: at(localPod1, remotePod1)})
	quiet := external(service{name: "quiet", slot: 1, endpoints: at(localPod1, remotePod1)})
	return []testCase{
		{name: "connections that stand survive changes to other endpoints", rules: "S25",
			run: whileConnected(stays, connectionsSurviveOthers)},
		{name: "connections that stand stay with an endpoint that takes no new ones", rules: "S25",
			run: whileConnected(leave, connectionsSurviveTheirEndpoint)},
		{name: "connections on which nothing is said for long are still there", rules: "S25",
			run: whileConnected(quiet, idleConnectionsStay)},
		{name: "no new connection is lost while endpoints come and go", rules: "S46", run: nothingIsLostInChurn},
	}
}

// whileConnected runs a case with a service and established TCP connections from every place to all of its addresses.
func whileConnected(svc service,
	run func(context.Context, *testbed, service, standing) error) func(context.Context, *testbed) error {
	return serving(svc, func(ctx context.Context, b *testbed, svc service) error {
		open, err := b.stand(b.flows(svc, model.TCP, paths(fromAll, everywhere)))
		if err != nil {
			return err
		}
		defer open.close()
		return run(ctx, b, svc, open)
	})
}

func connectionsSurviveOthers(ctx context.Context, b *testbed, base service, open standing) error {
	stays := base.endpoints
	other := external(service{name: "other", slot: 2, endpoints: at(remotePod2)})
	for _, change := range []struct {
		what     string
		services []service
	}{
		{"endpoints came", []service{external(service{endpoints: append(at(remotePod1, remotePod2), stays...)})}},
		{"one of them went", []service{external(service{endpoints: append(at(remotePod1), stays...)})}},
		{"another service came", []service{base, other}},
		{"it went", []service{base}},
		{"affinity was switched on", []service{external(service{endpoints: stays, affinity: time.Hour})}},
		{"external traffic policy Local was set",
			[]service{external(service{endpoints: append(at(remotePod1), stays...), externalLocal: true})}},
	} {
		if change.services[0].affinity > 0 && b.factory.lacks(SessionAffinity) {
			continue
		}
		if err := b.put(ctx, change.services...); err != nil {
			return err
		}
		if err := open.check(b.timeouts); err != nil {
			return fmt.Errorf("after %s:\n\n%w", change.what, err)
		}
	}
	return nil
}

func connectionsSurviveTheirEndpoint(ctx context.Context, b *testbed, _ service, open standing) error {
	for _, change := range []struct {
		what      string
		endpoints []endpoint
		new       want
	}{
		{"both endpoints began to terminate, and another one came",
			append(at(remotePod2), inPhase(terminating, localPod1, remotePod1)...), keeping(remotePod2)},
		{"both had gone", at(remotePod2), keeping(remotePod2)},
		{"there was none any more", nil, refused},
		// As for some seconds in the live migration of a virtual machine that keeps its address.
		{"both were there, and not ready", inPhase(unready, localPod1, remotePod1), refused},
		{"both were ready again", at(localPod1, remotePod1), keeping(localPod1, remotePod1)},
	} {
		svc := external(service{endpoints: change.endpoints})
		err := b.step(ctx, step{services: one(svc),
			traffic: []traffic{{from: fromPod, to: toCluster, want: change.new}}})
		if err != nil {
			return fmt.Errorf("after %s, new connections:\n\n%w", change.what, err)
		}
		if err := open.check(b.timeouts); err != nil {
			return fmt.Errorf("after %s:\n\n%w", change.what, err)
		}
	}
	return nil
}

func nothingIsLostInChurn(ctx context.Context, b *testbed) error {
	tcp := []servicePort{{protocol: model.TCP}}
	web := func(pods ...string) service { return external(service{slot: 1, ports: tcp, endpoints: at(pods...)}) }
	other := external(service{name: "other", slot: 2, endpoints: at(remotePod2)})
	waves := [][]service{
		{web(localPod1, remotePod1)},
		{web(localPod1, remotePod1, remotePod2)},
		{web(remotePod2)},
		{web(localPod1), other},
		{web(remotePod1, localPod2), other},
		{web(localPod1, localPod2, remotePod1, remotePod2)},
		{web(localPod2)},
	}
	if err := b.put(ctx, waves[0]...); err != nil {
		return err
	}
	st := b.startStream(waves[0][0], localPod1, localPod2, remotePod1, remotePod2)
	return st.during(func() error {
		for range 4 {
			for _, w := range waves {
				if err := b.put(ctx, w...); err != nil {
					return err
				}
				if err := st.await(ctx, 3); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// idleFor is how long connections stay idle: longer than the entry of a dataplane with short timeouts might last.
const idleFor = 3 * time.Second

// idleConnectionsStay changes another service while the connections are idle.
func idleConnectionsStay(ctx context.Context, b *testbed, quiet service, open standing) error {
	over := time.NewTimer(idleFor)
	defer over.Stop()
	busy := external(service{name: "busy", slot: 2})
	for wave := 0; ; wave++ {
		busy.endpoints = at([]string{localPod1, localPod2, remotePod1, remotePod2}[:wave%5]...)
		if err := b.put(ctx, quiet, busy); err != nil {
			return err
		}
		select {
		case <-over.C:
			if err := open.check(b.timeouts); err != nil {
				return fmt.Errorf("after %v in which nothing was said:\n\n%w", idleFor, err)
			}
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(idleFor / 20):
		}
	}
}
