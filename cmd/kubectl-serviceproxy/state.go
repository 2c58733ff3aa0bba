package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/remote"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

func (p *program) stateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "state", Short: "Print what a node does with all Services", Args: cobra.NoArgs,
		Example: `  # All Services and their endpoints, as the proxy of a node has to serve them
  kubectl serviceproxy state --node n1

  # The addresses of all Services
  kubectl serviceproxy state --node n1 -o jsonpath='{.services[*].service.clusterIPs[*]}'

  # From a brain, again whenever something changes
  kubectl serviceproxy state --node n1 --brain unix:///run/kube-proxy-lib/brain.sock --watch`,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.state(cmd.Context()) },
	}
	p.addSource(cmd)
	p.addProxy(cmd)
	p.brain.add(cmd)
	cmd.Flags().BoolVarP(&p.watch, "watch", "w", false, "print the state again whenever it changes")
	return cmd
}

// state prints the state of a node.
func (p *program) state(ctx context.Context) error {
	ctx, cancel, err := p.begin(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	detect, _, err := p.readProxy(ctx)
	if err != nil {
		return err
	}
	return p.printStates(ctx, detect, false, func(out io.Writer, s *sink.Snapshot) error {
		return p.print(out, stateOf(s))
	})
}

// snapshotPrinter prints a state, or an answer about it.
type snapshotPrinter func(io.Writer, *sink.Snapshot) error

// printStates prints the state of the node from any source. details requests the names of pods.
func (p *program) printStates(
	ctx context.Context, detect localstate.DetectLocal, details bool, print snapshotPrinter,
) error {
	if p.brain.Given() {
		return p.ofBrain(ctx, localstate.Options{NodeName: p.objects.NodeName, DetectLocal: detect}, print)
	}
	feed, err := p.feed(ctx, detect, details)
	if err != nil {
		return err
	}
	return p.follow(ctx, feed, print)
}

// feed returns the state of the node from the cluster or from files.
func (p *program) feed(
	ctx context.Context, detect localstate.DetectLocal, details bool,
) (*kubeproxy.LocalFeed, error) {
	if p.fromCluster() {
		client, err := p.cluster.client()
		if err != nil {
			return nil, err
		}
		if err := mayRead(ctx, client); err != nil {
			return nil, err
		}
		if err := p.chooseNode(ctx, client); err != nil {
			return nil, err
		}
	}
	p.objects.Details = details
	src, err := p.objects.Source()
	if err != nil {
		return nil, err
	}
	return &kubeproxy.LocalFeed{Source: src,
		State:   localstate.Options{NodeName: p.objects.NodeName, DetectLocal: detect},
		Cluster: localstate.ClusterOptions{EndpointDetails: details}}, nil
}

// chooseNode chooses the only node if none is named.
func (p *program) chooseNode(ctx context.Context, client kubernetes.Interface) error {
	if p.objects.NodeName != "" {
		return nil
	}
	const some = 5
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: some})
	switch {
	case err != nil:
		return inTime(ctx, err)
	case len(list.Items) == 1 && list.Continue == "":
		p.objects.NodeName = list.Items[0].Name
		return nil
	case len(list.Items) == 0:
		return errors.New("the cluster has no Nodes: is this the right --context (kubectl config get-contexts)?")
	}
	var names string
	for _, node := range list.Items {
		names += " " + node.Name
	}
	if list.Continue != "" {
		names += " ..."
	}
	return fmt.Errorf("nodes treat a Service differently: choose one with --node, of%s", names)
}

// follow prints the state once, or whenever it changes.
func (p *program) follow(ctx context.Context, feed kubeproxy.Feed, print snapshotPrinter) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var failed error
	printed := false
	proxy := health.New(0)
	printing := sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
		if !p.watch && proxy.NodeMissing() { // otherwise it is logged, and the Node may be created later
			failed = fmt.Errorf("there is no Node %q: check --node against kubectl get nodes", p.objects.NodeName)
		} else {
			_, _ = io.WriteString(p.notes, p.note)
			p.note = ""
			failed = print(p.out, s)
		}
		if failed != nil || !p.watch {
			cancel(nil)
		}
		printed = true
		return nil
	})
	err := kubeproxy.Run(ctx, kubeproxy.Options{Feed: feed, Sink: printing, ResyncInterval: -1, Health: proxy})
	if cause := context.Cause(ctx); !p.watch && !printed && !errors.Is(cause, context.Canceled) {
		err = errors.Join(err, cause)
	}
	return errors.Join(err, failed)
}

// ofBrain prints the state from a brain, and then the flags with which a later call prints the changes since.
func (p *program) ofBrain(ctx context.Context, state localstate.Options, print snapshotPrinter) error {
	opts, err := p.brain.options(state)
	if err != nil {
		return err
	}
	feed, err := remote.NewFeed(opts)
	if err != nil {
		return err
	}
	if err := p.follow(ctx, feed, print); err != nil {
		return err
	}
	if at := feed.Position(); !p.watch && at.InstanceID != "" {
		_, err = fmt.Fprintf(p.notes, "to see later changes: --instance-id %s --rev %d\n", at.InstanceID, at.Revision)
	}
	return err
}

// notFound returns an error that says what to do, if err is that an object does not exist.
func notFound(err error, format string, args ...any) error {
	if apierrors.IsNotFound(err) {
		return fmt.Errorf(format, args...)
	}
	return err
}
