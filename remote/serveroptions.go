package remote

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// ServerOptions configures a [Server]. Source is needed; everything else has a default.
type ServerOptions struct {
	// Source is where cluster objects come from. The server asks it for all Nodes.
	Source watch.Source
	// State is what is worked out for all nodes: Families, ServiceProxyName, NoExternalIPs, DropAnnotations,
	// EndpointDetails, HeadlessServices and ExternalNameServices. The other fields are those of a node, which its
	// client sets, and an error here.
	State localstate.Options

	// MinInterval is the minimum time between two revisions: changes in between are combined. A change after a pause is
	// sent at once. Default 100 ms; negative: none.
	MinInterval time.Duration
	// Heartbeat is the maximum time between two messages to a client. A client leaves a server that is silent for three
	// times as long. Default 12 s.
	Heartbeat time.Duration
	// Keep is how long a version is kept for clients that reconnect, so that the changes since then are available. The
	// state of a client that comes later is compared. Default 10 min; negative: not at all.
	Keep time.Duration

	// MaxClients is the number of streams at a time. Default 20,000.
	MaxClients int
	// MaxClasses is the number of classes: each costs the memory of a whole state. Default 64.
	MaxClasses int
	// MaxFullStates is the number of clients that are sent a full state, or have theirs compared, at a time. Those that
	// have nearly everything do not count. Default 64.
	MaxFullStates int
	// MaxWait is how long a client waits for its turn before it is told to come again later. Default 5 s.
	MaxWait time.Duration

	// Metrics, if given, is the registry for the metrics: they are registered while Run runs. See the package
	// documentation for the list.
	Metrics prometheus.Registerer
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
	for _, n := range []struct {
		name     string
		value    *int
		standard int
	}{{"MaxClients", &o.MaxClients, 20000}, {"MaxClasses", &o.MaxClasses, 64},
		{"MaxFullStates", &o.MaxFullStates, 64}} {
		if *n.value < 0 {
			errs = append(errs, fmt.Errorf("%s %d is negative", n.name, *n.value))
		}
		if *n.value == 0 {
			*n.value = n.standard
		}
	}
	for _, n := range []struct {
		value    *time.Duration
		standard time.Duration
	}{
		{&o.MinInterval, 100 * time.Millisecond}, {&o.Heartbeat, 12 * time.Second}, {&o.Keep, 10 * time.Minute},
		{&o.MaxWait, 5 * time.Second},
	} {
		if *n.value == 0 {
			*n.value = n.standard
		}
	}
	if o.Heartbeat < 0 || o.MaxWait < 0 {
		errs = append(errs, errors.New("a negative Heartbeat or MaxWait"))
	}
	return o, errors.Join(errs...)
}
