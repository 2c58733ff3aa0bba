// Package page shows people what a running service proxy does: as a web page and as JSON. Any program can mount it:
//
//	p := page.New(page.Options{Health: health})
//	p.SetExplainer(feed) // a kubeproxy.LocalFeed
//	mux.Handle("/page/", http.StripPrefix("/page", p))
//	err := kubeproxy.Run(ctx, kubeproxy.Options{Feed: feed, Sink: p.Sink(backend), Health: health})
//
// # What it shows
//
//   - An overview: how many services and endpoints there are, in which families; which services have a problem, and
//     why; how long the last Syncs took; which services change most often; whether the source is still connected.
//   - All services, with a search by name, address, port and endpoint.
//   - For one service a diagram of the paths of its traffic: who sends, to which address, by which policy, to which
//     endpoints, and which endpoints are not used and why (with SetExplainer).
//   - The backend's rules for the service, if it is a [sink.Describer].
//   - What happens to a packet, from anywhere to anywhere: package oracle's answer about the state that is applied,
//     with the rules and their texts.
//   - When changes arrived and were applied, by family; the last changes and errors; and repairs of changes by others,
//     if the backend is a [sink.Repairer].
//
// # Problems
//
// A service has a problem if the backend refused a part of it (a [sink.PortError]), if it does not serve a part of it,
// such as an address that another service owns (S59; the backend has to be a [sink.ProblemReporter]), or if traffic to
// it finds no endpoint. External traffic that must stay on this node may find none here.
//
// # Guarantees
//
//   - It never blocks the proxy. Its cost for a Sync is proportional to what changed; browsers are served from
//     snapshots, each by its own goroutine. A slow browser gets the sum of what it missed; one that does not read is
//     disconnected.
//   - It changes nothing. It answers only GET requests.
//   - It copies nothing: it keeps pointers to the values that the sink receives.
//   - The page is self-contained: nothing is fetched from elsewhere, and no name is ever interpreted as HTML.
//
// # Access
//
// It shows the names and addresses of all services to everyone who can reach it: serve it on a loopback address, or
// behind an authenticating proxy. It answers only requests for an IP address, for localhost, or for Options.Hosts, so
// that another site cannot read it by pointing its own name at this proxy (DNS rebinding). It refuses requests that a
// browser sends on behalf of another origin.
//
// # JSON
//
// The JSON is for the web page, and may change with it. The paths are relative to the one at which the page is mounted:
//
//	api/state                                 the node, the source, the health of each family, the worst problems, the
//	                                          last Syncs and changes, the services that change most often
//	api/services?q=TEXT&offset=N&limit=N      services; &problems=true for those with problems only, the worst first
//	api/service?namespace=NAMESPACE&name=NAME one service
//	api/flow?q=QUESTION                       what happens to a packet: an [oracle.Answer], see [oracle.Oracle.Ask],
//	                                          with 200 endpoints of each outcome; more has the numbers of the others,
//	                                          appliedAt the time of the state
//	api/events                                what changes, as server-sent events
package page
