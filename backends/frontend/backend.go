package frontend

import (
	"context"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Backend has the methods of every backend of this module: of the types Backend of packages nft, iptables, ipvs, hns
// and userspace. They are on a [Table], and have all optional interfaces of package sink. The methods of the sink are
// called from one goroutine at a time; all others may be called from any.
type Backend interface {
	sink.Sink
	sink.NodeSetter
	sink.Resyncer
	sink.FailureResyncer
	sink.Repairer
	sink.Describer
	sink.Yielder
	sink.ProblemReporter
	sink.ContestReporter
	sink.ExternalReporter
	// NodePortAddresses returns the addresses of the host that serve node ports, as the next Sync applies them: for
	// conntrack.Options.
	NodePortAddresses() nodeaddr.Addresses
	// OnAddresses sets a function that is called, from another goroutine, when the host's addresses that serve node
	// ports have changed. The next Sync decides anew who owns them (S59), so the function should request one: with
	// Options.SyncRequests of the root package.
	OnAddresses(changed func())
	// OnRepair sets a function that is called, from another goroutine, after rules that other programs had removed or
	// changed were restored. Flows that began without them are not rewritten: see CheckAll of conntrack.Reconciler. The
	// function must not call the backend.
	OnRepair(repaired func(model.Family))
	// CleanUp removes everything that the backend has applied. A later Sync applies everything again.
	CleanUp(ctx context.Context) error
	// Close ends the background work and releases the backend's resources. Everything applied stays. Call no other method
	// after it; a second Close does nothing.
	Close() error
}
