// Command brain watches a cluster once for many nodes: it computes each node's service state and sends it to the node's
// proxies. It is package remote/brain as a program:
//
//	brain --kubeconfig FILE --listen unix:///run/kube-proxy-lib/brain.sock
//	brain --in-cluster --listen 0.0.0.0:10270 --tls-cert-file CERT --tls-private-key-file KEY --client-ca-file CA
//
// The first form serves all programs on this machine that may open the socket. In the second form a client is the node
// that its certificate names (system:node:NAME). Any number of independent replicas may run. manifest.yaml has a
// Deployment; kubectl serviceproxy state --brain shows what a node gets.
//
// With --status ADDRESS it serves /livez, /readyz (whether it is up to date), /metrics and /status: the state of the
// nodes as JSON, worst first.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-proxy-lib/internal/program/certificates"
	"sigs.k8s.io/kube-proxy-lib/internal/program/source"
	"sigs.k8s.io/kube-proxy-lib/internal/prom"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/remote/brain"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	context.AfterFunc(ctx, cancel) // a second signal ends the program at once
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "brain:", err)
		os.Exit(1)
	}
}

// options are the values of the flags.
type options struct {
	cluster                     source.Cluster
	inCluster                   bool
	listen                      string
	certFile, keyFile, clientCA string
	insecure                    bool
	status                      string
	externalIPs                 bool
	grace                       time.Duration
	viewers                     string
	keepBytes, classes          int
	endpoints                   localstate.EndpointLimits
}

func parse(args []string) (options, error) {
	var o options
	set := flag.NewFlagSet("brain", flag.ContinueOnError)
	o.cluster.Register(set)
	set.BoolVar(&o.inCluster, "in-cluster", false,
		"watch the API server of the cluster that this program runs in, using its service account")
	set.StringVar(&o.listen, "listen", "",
		"comma-separated `targets` to listen on for clients, each unix:///PATH or ADDRESS:PORT")
	set.StringVar(&o.certFile, "tls-cert-file", "", "`path` of the server certificate; reloaded when it changes")
	set.StringVar(&o.keyFile, "tls-private-key-file", "", "`path` of the private key")
	set.StringVar(&o.clientCA, "client-ca-file", "",
		"`path` of the CA certificates to verify clients; reloaded when they change")
	set.BoolVar(&o.insecure, "insecure", false,
		"serve --listen ADDRESS:PORT without TLS: anyone who can connect can read the state of any node")
	set.StringVar(&o.status, "status", "",
		"`address` to serve /livez, /readyz, /metrics and /status on; empty disables them")
	set.BoolVar(&o.externalIPs, "service-external-ips", true,
		"serve spec.externalIPs of Services on nodes; use false where the authors of Services are not trusted")
	set.IntVar(&o.endpoints.Service, "service-endpoints", 0,
		"make at most `n` endpoints for a Service: the addresses of its slices times its ports (default 262144)")
	set.IntVar(&o.endpoints.Namespace, "namespace-endpoints", 0,
		"make at most `n` endpoints for the Services of a namespace (default 1048576)")
	set.StringVar(&o.viewers, "viewers", "",
		"comma-separated common `names` of client certificates that may read the state of any node with kubectl serviceproxy")
	set.IntVar(&o.keepBytes, "keep-bytes", 64<<20,
		"keep about this many `bytes` of older states for each class of nodes, for clients that come back")
	set.IntVar(&o.classes, "classes", 64,
		"serve at most `n` classes of nodes (zone and options), each with a state of its own; nodes of other zones are"+
			" served like nodes without a zone")
	set.DurationVar(&o.grace, "grace", 20*time.Second,
		"on SIGTERM, send clients to other brains one by one within this `duration`")
	if err := set.Parse(args); err != nil {
		return o, err
	}
	switch {
	case set.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", set.Arg(0))
	case o.listen == "":
		return o, errors.New("--listen is required")
	case o.inCluster && o.cluster.Given():
		return o, errors.New("--in-cluster cannot be used with --file or --kubeconfig")
	}
	return o, o.endpoints.Validate()
}

// allNodes returns the options shared by all nodes.
func (o *options) allNodes() localstate.ClusterOptions {
	return localstate.ClusterOptions{NoExternalIPs: !o.externalIPs, EndpointLimits: o.endpoints}
}

func (o *options) source(requests *prom.Requests) (watch.Source, error) {
	o.cluster.Wrap = requests.Wrap
	if o.inCluster {
		o.cluster.Config = func() (*rest.Config, error) {
			config, err := rest.InClusterConfig()
			if err != nil {
				return nil, fmt.Errorf("--in-cluster: %w", err)
			}
			return config, nil
		}
	}
	return o.cluster.Source()
}

// admission returns the options that determine which clients a listener admits.
func (o *options) admission(ln net.Listener) (brain.ServeOptions, error) {
	switch {
	case ln.Addr().Network() == "unix":
		return brain.ServeOptions{}, nil
	case o.insecure:
		return brain.ServeOptions{Insecure: true, Node: brain.ClaimedNode}, nil
	case o.certFile == "" || o.keyFile == "" || o.clientCA == "":
		return brain.ServeOptions{}, fmt.Errorf(
			"--listen %v needs --tls-cert-file, --tls-private-key-file and --client-ca-file, or --insecure", ln.Addr())
	}
	load := func() (*tls.Config, error) { return certificates.Config(o.certFile, o.keyFile, o.clientCA) }
	config, err := load()
	if err != nil {
		return brain.ServeOptions{}, fmt.Errorf("--tls-cert-file, --tls-private-key-file and --client-ca-file: %w", err)
	}
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return load() }
	who := brain.ServeOptions{TLS: config}
	if o.viewers != "" {
		who.Viewers = strings.Split(o.viewers, ",")
	}
	return who, nil
}

// run runs the program until ctx ends and all clients are disconnected, or until a part of it fails. It prints the
// addresses on which it listens.
func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	requests := prom.NewRequests()
	src, err := o.source(requests)
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), requests)
	server, err := brain.New(ctx, brain.Options{Source: src, Cluster: o.allNodes(), Metrics: registry,
		KeepBytes: o.keepBytes, MaxClasses: o.classes})
	if err != nil {
		return err
	}

	asked := ctx
	ctx, end := context.WithCancelCause(context.WithoutCancel(asked))
	defer end(nil)
	var wg sync.WaitGroup
	part := func(run func() error) {
		wg.Go(func() {
			if err := run(); err != nil {
				end(err)
			}
		})
	}
	for target := range strings.SplitSeq(o.listen, ",") {
		ln, err := brain.Listen(ctx, target, 0)
		if err != nil {
			end(fmt.Errorf("--listen %s: %w", target, err))
			break
		}
		admission, err := o.admission(ln)
		if err != nil {
			end(errors.Join(err, ln.Close()))
			break
		}
		part(func() error { return server.Serve(ctx, ln, admission) })
		fmt.Fprintln(out, "clients:", ln.Addr())
	}
	if o.status != "" && ctx.Err() == nil {
		ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.status)
		if err != nil {
			end(fmt.Errorf("--status: %w", err))
		} else {
			part(func() error { return serveStatus(ctx, ln, server, registry) })
			fmt.Fprintf(out, "status: http://%v/status\n", ln.Addr())
		}
	}
	if ctx.Err() == nil {
		part(func() error { return server.Run(ctx) })
	}
	select {
	case <-ctx.Done():
	case <-asked.Done():
		server.Drain(ctx, o.grace)
		end(nil)
	}
	wg.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// serveStatus serves --status until ctx ends.
func serveStatus(ctx context.Context, ln net.Listener, server *brain.Server, registry *prometheus.Registry) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := server.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("GET /status", server.StatusHandler())
	srv := statusServer(mux)
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(ln); ctx.Err() == nil {
		return fmt.Errorf("--status %v: %w", ln.Addr(), err)
	}
	return nil
}

// Limits for idle and slow connections to --status: otherwise anyone who can reach it could exhaust the file
// descriptors that nodes need.
const (
	requestTimeout = 10 * time.Second
	answerTimeout  = time.Minute // for /status and /metrics of thousands of nodes
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 8 << 10
)

func statusServer(handler http.Handler) *http.Server {
	return &http.Server{Handler: handler, ReadTimeout: requestTimeout, WriteTimeout: answerTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes}
}
