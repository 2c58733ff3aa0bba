// Package kubeproxy is the front door of kube-proxy-lib, the library to build a Kubernetes service proxy from. [Run]
// watches the cluster, works out what this node has to do with service traffic, and tells a backend; the backend does
// the last step, writing that to its dataplane.
//
// # The way of the data
//
//	watch             localstate                 sink                        backends
//	Service       ->  Kubernetes semantics   ->  SetService/SetEndpoint  ->  nft, iptables, your own
//	EndpointSlice     for one node, computed     or a full-state callback
//	Node              only for what changed      Sync(ctx) error
//
// Nothing flows back but errors. Every arrow is a package boundary, and each package can be used without the ones to
// its left.
//
//   - Package [sigs.k8s.io/kube-proxy-lib/model] holds the values: services, endpoints, and for every kind of traffic
//     the decision what to do with it. Start here: a backend reads nothing else.
//   - Package [sigs.k8s.io/kube-proxy-lib/sink] has the interface that a backend implements, Sink, and its other form,
//     a callback over the full state.
//   - Package [sigs.k8s.io/kube-proxy-lib/watch] has the sources: an API server, informers, files.
//   - Package [sigs.k8s.io/kube-proxy-lib/localstate] is the only one that knows Kubernetes' semantics, and explains
//     its decisions.
//   - Package [sigs.k8s.io/kube-proxy-lib/remote] runs localstate elsewhere, once for many nodes, and sends the result
//     here.
//   - Package [sigs.k8s.io/kube-proxy-lib/diffstore] tells a backend what changed in what it renders.
//
// # Promises
//
//   - Never a partial view. The first Sync comes when everything has been listed, even if the cluster is empty.
//   - The order of events does not matter.
//   - No news is no work: a change that does not alter this node's result reaches no sink.
//   - A failed apply loses nothing: what failed is retried in full, with backoff; everything else goes on.
//   - Cost is in proportion to what changes, never to the size of the cluster.
//   - The library does not exit, panic on input, install signal handlers, read flags or hold globals. Run returns an
//     error, and every goroutine ends with its context.
//
// # Logging
//
// Everything logs to the logger in the context (klog.FromContext).
//
// # Metrics
//
// Run has kube-proxy's metrics, with the same names and labels, so that existing dashboards and alerts work:
//
//	kubeproxy_sync_proxy_rules_duration_seconds{ip_family}            a Sync
//	kubeproxy_sync_full_proxy_rules_duration_seconds{ip_family}       one that is a full resync
//	kubeproxy_sync_partial_proxy_rules_duration_seconds{ip_family}    one that is not
//	kubeproxy_network_programming_duration_seconds{ip_family}         from a change of pods to the end of its Sync
//	kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family}
//	kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family}
//	kubeproxy_sync_proxy_rules_service_changes_pending, _total
//	kubeproxy_sync_proxy_rules_endpoint_changes_pending, _total
//	kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy,ip_family}
//
// The backends and packages conntrack and health have metrics of their own, for the same registerer. See docs/operate
// in the repository.
package kubeproxy
