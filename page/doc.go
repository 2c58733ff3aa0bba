// Package page shows people what a running service proxy does: a web page, and the same as JSON. Any program mounts it:
//
//	p := page.New(page.Options{Health: health})
//	runner, err := kubeproxy.New(ctx, kubeproxy.Options{Sink: p.Sink(backend), Health: health, ...})
//	p.SetExplainer(runner)
//	mux.Handle("/page/", http.StripPrefix("/page", p))
//
// # What it shows
//
//   - All services, with a search by name, address, port and endpoint.
//   - For one service a picture of the ways that its traffic goes: who sends, to which address, by which policy, to
//     which endpoints, and which endpoints are not used and why (with SetExplainer).
//   - What the backend made of the service, if it is a [sink.Describer].
//   - What happens to a packet, from anywhere to anywhere: package oracle's answer, with the rules.
//   - When changes came and were applied, by family; the last changes, errors, and repairs of what others had changed,
//     if the backend is a [sink.Repairer].
//
// # What it guarantees
//
//   - It never holds up the proxy. A Sync costs it what changed; browsers are served from snapshots, each by its own
//     goroutine. One that is slow is told the sum of what it missed; one that does not read is cut off.
//   - It changes nothing. There is no request but GET.
//   - It copies nothing: it holds the values that the sink is given, by pointer.
//   - The page is self-contained: nothing is fetched from elsewhere, and nothing that users can name is taken for HTML.
//
// # Who may see it
//
// It shows the names and addresses of all services, to everybody who can reach it: serve it on a loopback address, or
// behind something that knows who asks. It answers only requests for an IP address, for localhost, or for
// Options.Hosts, so that a page of another site cannot read it by giving its own name the address of this proxy (DNS
// rebinding); and none that a browser sends for a page of another origin.
//
// # JSON
//
// Below the path at which it is mounted:
//
//	api/state                                 the node, the health of each family, the last changes
//	api/services?q=TEXT&offset=N&limit=N      services; &problems=true for those that something is wrong with
//	api/service?namespace=NAMESPACE&name=NAME one service
//	api/flow?q=QUESTION                       what happens to a packet: an [oracle.Answer]; see [oracle.Oracle.Ask]
//	api/events                                what changes, as server-sent events
package page
