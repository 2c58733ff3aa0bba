// Package health keeps track of the health of a running service proxy, by IP family, and serves it: /healthz for load
// balancers that send traffic to the node as a whole, and /livez for the kubelet (S39a).
//
// A running proxy has one [Proxy]. The root package's Run updates it, and a loop of your own can do so, too. Others read
// it through the handlers, [Proxy.Healthy], and [Proxy.Family], which has the times behind them.
package health
