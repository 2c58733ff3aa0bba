// Package health tells load balancers, the kubelet and others whether this node can take traffic.
//
//   - [Proxy] is the health of the running service proxy, by IP family: /healthz for load balancers that send traffic
//     to the node as a whole, and /livez for the kubelet (S39a). The root package's Run updates it, and a loop of your
//     own can do so, too. Others read it through the handlers, [Proxy.Healthy], and [Proxy.Family], which has the times
//     behind them.
//
//   - [Services] tells load balancers whether the node has endpoints of a Service. They probe each node on a port that
//     belongs to the Service, healthCheckNodePort (S38, S39). Services is a sink; wrap the backend in it:
//
//     s := health.NewServices(backend, health.ServicesOptions{Healthy: proxy.Healthy})
//
// A port that cannot be opened does not fail Sync. Headers, bodies, codes and Events are kube-proxy's.
package health
