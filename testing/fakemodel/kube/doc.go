// Package kube builds cluster objects for tests, in one expression and as an API server would complete them: Services,
// EndpointSlices, Nodes and ServiceCIDRs.
//
//	kube.Service("default/web").Port("http", 80).NodePort(30080).ExternalLocal().Build()
//	kube.EndpointSlice("default/web").Port("http", 8080).Endpoint("10.244.1.5").OnNode("n1").Build()
//
// Methods about a port or an endpoint apply to the last one added. Everything else has a default: a service has a
// cluster IP derived from its name and the TCP port 80, its slice the port 8080 without a name.
//
// Package apiserver serves the objects to programs that list and watch.
//
// Nothing is validated: tests must be able to build what an API server would reject. Build returns a new object every
// time, so one builder can make several versions of an object.
package kube
