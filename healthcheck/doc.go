// Package healthcheck tells load balancers whether this node has endpoints of a Service.
//
// [Services] is a sink that serves the health checks of Services: a load balancer probes each node, on a port that
// belongs to the Service (healthCheckNodePort), to find out whether the node has endpoints (S38, S39). Wrap the backend
// in it:
//
//	s := healthcheck.NewServices(backend, healthcheck.ServicesOptions{Healthy: proxy.Healthy})
//
// The health of the proxy itself, /healthz and /livez, is in package health.
//
// A port that cannot be opened does not fail Sync. Headers, bodies, codes and Events are kube-proxy's.
package healthcheck
