package remote

import (
	"cmp"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// ServerOptions configures a [Server]. Source is needed; everything else has a default.
type ServerOptions struct {
	// Source is where cluster objects come from. The server asks it for all Nodes.
	Source watch.Source
	// State is what is worked out for all nodes: Families, ServiceProxyName, NoExternalIPs, EndpointDetails,
	// HeadlessServices and ExternalNameServices. The other fields are those of a node, which its client sets, and an
	// error here.
	State localstate.Options

	// MinInterval is the minimum time between two revisions: changes in between are combined. A change after a pause is
	// sent at once. Default 100 ms; negative: none.
	MinInterval time.Duration
	// Metrics, if given, is the registry for the metrics: they are registered while Run runs. See the package
	// documentation for the list.
	Metrics prometheus.Registerer

	limits limits
}

// limits bound what clients cost. Only tests change them.
type limits struct {
	// heartbeat is the maximum time between two messages to a client. A client leaves a server that is silent for three
	// times as long.
	heartbeat time.Duration
	// keep is how long a version is kept for clients that reconnect, so that the changes since then are available. The
	// state of a client that comes later is compared. Negative: not at all.
	keep time.Duration
	// maxClients is the number of streams at a time.
	maxClients int
	// maxClasses is the number of classes: each costs the memory of a whole state.
	maxClasses int
	// maxFullStates is the number of clients that are sent a full state, or have theirs compared, at a time. Those that
	// have nearly everything do not count.
	maxFullStates int
	// maxWait is how long a client waits for its turn before it is told to come again later.
	maxWait time.Duration
}

// withDefaults returns the limits with those that are not set.
func (l limits) withDefaults() limits {
	return limits{
		heartbeat:     cmp.Or(l.heartbeat, 12*time.Second),
		keep:          cmp.Or(l.keep, 10*time.Minute),
		maxClients:    cmp.Or(l.maxClients, 20_000),
		maxClasses:    cmp.Or(l.maxClasses, 64),
		maxFullStates: cmp.Or(l.maxFullStates, 64),
		maxWait:       cmp.Or(l.maxWait, 5*time.Second),
	}
}

func (o ServerOptions) withDefaults() (ServerOptions, error) {
	var errs []error
	if o.Source == nil {
		errs = append(errs, errors.New("no source"))
	}
	d := o.State.DetectLocal
	if o.State.NodeName != "" || len(o.State.NodeIPs) > 0 || o.State.MasqueradeAll || o.State.DrainingEndpoints ||
		len(d.ClusterCIDRs) > 0 || d.NodeCIDR || d.Bridge != "" || d.InterfacePrefix != "" {
		errs = append(errs,
			errors.New("state: NodeName, NodeIPs, MasqueradeAll, DrainingEndpoints and DetectLocal are options of clients"))
	}
	o.MinInterval = cmp.Or(o.MinInterval, 100*time.Millisecond)
	o.limits = o.limits.withDefaults()
	return o, errors.Join(errs...)
}
