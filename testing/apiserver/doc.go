// Package apiserver is a small Kubernetes API server in the process, for tests of programs that list and watch: service
// proxies, controllers, and every other client.
//
//	s, err := apiserver.New(kube.Node("n1").Build(), kube.Service("default/web").Build())
//	server := httptest.NewServer(s) // or any other http.Server, also one with TLS
//	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
//	err = s.Set(kube.EndpointSlice("default/web").Endpoint("10.244.1.5").Build())
//
// Other programs read the file that [Kubeconfig] returns. Tests in virtual time (testing/synctest) use [Server.Config],
// whose clients need no network.
//
// # What it serves
//
// It serves all kinds of objects that client-go knows in a stable version (v1, v2): Services, EndpointSlices, Nodes and
// ServiceCIDRs, but also Events, Leases, and everything else. Clients may get, list, watch, create, update and delete
// them, patch them (strategic, merge and JSON patches) and apply them on the server, in JSON, YAML or protobuf, with
// dry runs and strict validation of fields; CBOR is refused. Clients may ask for the metadata alone. kubectl works:
// get, create, apply, replace, patch, delete and wait. Token and access reviews are approved, discovery lists all
// kinds, and /healthz, /livez, /readyz and /version answer.
//
// It follows the rules of real API servers:
//
//   - One resource version counts the changes of all objects.
//   - A list is sorted by namespace and name. If the client sets a limit it comes in pages, which all show the state
//     of the first one. Lists with resource version 0 ignore the limit.
//   - A watch begins after the client's resource version, or with the existing objects if there is none, or 0. With
//     sendInitialEvents (a streamed list) a bookmark follows these objects. An object that begins or ceases to match
//     the selectors is reported as added or deleted. The watch ends after the timeoutSeconds of the client.
//   - After [Server.Compact], older resource versions and pages have expired: 410 Gone. A list from a version that does
//     not exist yet fails with 504, "Too large resource version".
//   - Field selectors support the name and the namespace, a Service's spec.clusterIP and spec.type, and a Pod's
//     spec.nodeName. Any other field is a bad request.
//
// A watch whose client allows bookmarks receives one when [Server.Bookmark] is called, and when it times out. Nothing
// else is sent on a timer.
//
// # Faults
//
// Nothing fails unless a test asks for it. [Server.SetFaults] rejects or delays requests, ends watches after a number
// of events or silences them, and answers like a replica that lags behind. [Server.Cut] ends all watches.
// [Server.Restore] begins again with lower resource versions. [Server.Requests] returns the clients' requests.
//
// # What it does not do
//
// It does not validate objects or fill in defaults: it serves them as they are, so build them with package
// fakemodel/kube. There is no authentication or admission, and there are no controllers, finalizers, custom resources,
// tables (kubectl get prints names and ages) or OpenAPI schemas. An update of a status replaces the whole object.
// Managed fields are kept only for objects that a client has written as a named field manager, as kubectl does. The
// server keeps its history in memory, until [Server.Compact].
//
// # Why not a library
//
// k8s.io/apiserver is made for real servers: it needs a storage backend, and links etcd's client among much else.
// envtest and kwok start the real programs, as testing/integration does. The fake clientset of client-go is not a
// server, and has no resource versions or bookmarks. The mockkubeapiserver of kubebuilder-declarative-pattern speaks
// only JSON, and supports no selectors, pages or expired versions.
package apiserver
