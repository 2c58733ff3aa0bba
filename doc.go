// Package kubeproxy is the entry point of kube-proxy-lib, a library for building Kubernetes service proxies. [Run]
// watches the cluster, works out what this node must do with service traffic, and passes the result to a backend, which
// programs its dataplane.
//
// Run has one input, a [Feed]. A [LocalFeed] works the result out in this process, from a source of cluster objects;
// package remote has one that receives it from a server.
//
// # Data flow
//
//	watch             localstate                 sink                        backends
//	Service       ->  Kubernetes semantics   ->  SetService/SetEndpoint  ->  nft, iptables, your own
//	EndpointSlice     for one node, computed     or a full-state callback
//	Node              only for what changed      Sync(ctx) error
//
// Only errors flow back. Every arrow is a package boundary, and each package can be used without the ones to its left.
//
//   - Package [sigs.k8s.io/kube-proxy-lib/model] holds the values: services, endpoints, and for every kind of traffic
//     the decision about what to do with it. Start here: a backend reads nothing else.
//   - Package [sigs.k8s.io/kube-proxy-lib/sink] has Sink, the interface that a backend implements, and an alternative:
//     a callback over the full state.
//   - Package [sigs.k8s.io/kube-proxy-lib/watch] has the sources: an API server, informers, files.
//   - Package [sigs.k8s.io/kube-proxy-lib/localstate] is the only package that knows Kubernetes' semantics. It can
//     explain its decisions: see [LocalFeed.Explain].
//   - Package [sigs.k8s.io/kube-proxy-lib/remote/brain] runs localstate on a server, once for many nodes, and sends
//     each node its result; package [sigs.k8s.io/kube-proxy-lib/remote] receives it there.
//   - Package [sigs.k8s.io/kube-proxy-lib/diffstore] finds what changed, for a backend that renders its full state.
//
// # Promises
//
//   - Never a partial view. The first Sync comes once everything has been listed, even if the cluster is empty.
//   - The order of events does not matter.
//   - A change that does not alter this node's result does not reach the sink.
//   - A failed Sync loses nothing: what failed is retried in full, with backoff; everything else goes on.
//   - Cost is proportional to what changes, never to the size of the cluster.
//   - The library does not exit, panic on input, install signal handlers, read flags or hold globals. Run returns an
//     error, and every goroutine ends with its context.
//
// # Logging
//
// Everything logs to the logger in the context (klog.FromContext).
//
// # Metrics
//
// Run exports kube-proxy's metrics, with the same names and labels, so that existing dashboards and alerts work, and
// three of its own:
//
//	kubeproxy_sync_proxy_rules_duration_seconds{ip_family}            a Sync
//	kubeproxy_sync_full_proxy_rules_duration_seconds{ip_family}       a Sync that is a full resync
//	kubeproxy_sync_partial_proxy_rules_duration_seconds{ip_family}    a Sync of changes only
//	kubeproxy_network_programming_duration_seconds{ip_family}         from a change of pods to the end of its Sync
//	kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family}
//	kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family}
//	kubeproxy_sync_proxy_rules_service_changes_pending, _total
//	kubeproxy_sync_proxy_rules_endpoint_changes_pending, _total
//	kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy,ip_family}
//	kubeproxy_incomplete_lists_total{resource}                        streamed lists that did not complete (our own)
//	kubeproxy_silent_watch_relists_total{resource}                    lists after a silence of the server (our own)
//	kubeproxy_service_ports_failed{ip_family}                         service ports that the dataplane refuses (our own)
//
// The backends and packages conntrack and health have further metrics, for the same registerer. See docs/operate in the
// repository.
package kubeproxy
