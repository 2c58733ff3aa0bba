// Package health knows how a running service proxy is doing, by IP family, and answers those who ask: /healthz for load
// balancers that send traffic to the node as a whole, and /livez for the kubelet (S39a).
//
// There is one [Proxy] for a running proxy. Who feeds it notes what happens: the root package's Run and Progress do,
// and a loop of your own may. Everybody else asks: the handlers, [Proxy.Healthy], and [Proxy.Family] for the times
// behind it.
package health
