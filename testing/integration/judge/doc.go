// Package judge runs cmd/judge on upstream's kube-proxy, which must pass the core profile, both with the in-process API
// server and with a real one: the verdicts must be the same. It also runs two proxies side by side: kube-proxy
// preflight must announce each difference that packets show.
package judge
