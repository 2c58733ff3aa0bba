// Package apiserver is a small Kubernetes API server in the process, for tests of programs that list and watch: service
// proxies, controllers, and anything else that uses a client.
//
//	s, err := apiserver.New(kube.Node("n1").Build(), kube.Service("default/web").Build())
//	server := httptest.NewServer(s) // any http.Server will do, also with TLS
//	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
//	err = s.Set(kube.EndpointSlice("default/web").Endpoint("10.244.1.5").Build())
//
// Programs get the file that [Kubeconfig] writes. A test in virtual time (testing/synctest) uses [Server.Config], which
// needs no network.
//
// # What it serves
//
// All kinds of objects that client-go's scheme knows in a stable version (v1, v2), namespaced or not: Services,
// EndpointSlices, Nodes and ServiceCIDRs as well as Events and Leases. Clients may get, list, watch, create, update and
// delete them, and patch them by a strategic merge patch; in JSON, YAML or protobuf. What they write is stored like
// what [Server.Set] stores. Reviews of tokens and of access are answered with yes. Discovery names all of this.
//
// As an API server does it:
//
//   - One resource version counts the changes of all objects. A list has the version at which it is true.
//   - A list is sorted by namespace and name, and comes in pages if the client sets a limit; later pages show the state
//     of the first one. With resource version 0 the limit has no effect.
//   - A watch begins after a resource version, or, without one, with all objects that there are; with sendInitialEvents
//     (a "watch-list") a bookmark marks the end of these. It ends after the time that the client asks for, with a
//     bookmark if the client wants bookmarks; [Server.Bookmark] sends others. There are no timers besides.
//   - An object that starts or stops to match the selectors of a watch is reported as added or deleted.
//   - After [Server.Compact] older resource versions and pages have expired (410 Gone). A version that does not exist
//     yet is too large (504).
//   - A field selector may name what API servers select by: the name and namespace, a Service's spec.clusterIP and
//     spec.type, a Pod's spec.nodeName. Others are bad requests.
//
// # Faults
//
// Faults happen on request: [Server.SetFaults] refuses requests, delays them, ends watches, and answers as a replica
// would that lags behind; [Server.Cut] ends all watches. [Server.Requests] says what was asked.
//
// # What it does not do
//
// It neither validates objects nor fills in defaults: it serves them as they were given, so use the builders of package
// fakemodel/kube. It knows no controllers, finalizers, authentication, admission, custom resources, server-side apply,
// tables for kubectl, or OpenAPI. An update of a status replaces the object. The whole history stays in memory.
//
// # Why not a library
//
// k8s.io/apiserver needs an etcd, and is bigger than all else that this module links. envtest and kwok start the real
// programs, which the module testing/integration does as well. client-go's fake clientset is no server, and has neither
// resource versions nor bookmarks. mockkubeapiserver of kubebuilder-declarative-pattern speaks JSON only, and knows
// neither selectors, pages nor expired versions.
package apiserver
