// Package healthcheck answers those who ask whether this node should get service traffic.
//
// [Services] is a sink that serves the health checks of Services: a load balancer asks each node on a port of the
// Service's own (healthCheckNodePort) whether there are endpoints on it (S38, S39). Put it around the backend:
//
//	s := healthcheck.NewServices(backend, healthcheck.ServicesOptions{Healthy: proxy.Healthy})
//
// [Proxy] has the http.Handlers of the proxy's own health, /healthz and /livez (S39a). It is fed with the health of each
// family that a run keeps, and with the Node.
//
// Neither ever fails a Sync: that nobody can ask is no reason to hold up traffic. Paths, headers, bodies, codes and metrics are kube-proxy's.
package healthcheck
