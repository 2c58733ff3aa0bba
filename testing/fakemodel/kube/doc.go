// Package kube builds cluster objects for tests: services, endpoint slices, nodes and service CIDRs, in one expression
// and as an API server would complete them.
//
//	kube.Service("default/web").Port("http", 80).NodePort(30080).ExternalLocal().Build()
//	kube.EndpointSlice("default/web").Port("http", 8080).Endpoint("10.244.1.5").OnNode("n1").Build()
//
// A method about a port or an endpoint concerns the last one that was added. Everything else has a default: a service
// has a cluster IP derived from its name and the TCP port 80, its slice the port 8080 without a name.
//
// Package apiserver serves them to programs that list and watch.
//
// Nothing is checked: tests must be able to build what an API server would refuse. Build returns a new object every
// time, so a builder can make an object and then a changed one.
package kube
