package main

import (
	"context"
	"fmt"
	"io"
	"net/url"

	"github.com/spf13/cobra"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

func (p *program) explainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "explain [NAMESPACE/]SERVICE", Short: "Say why each endpoint of a Service is used on a node, or not",
		Args: exactly("the name of a Service"),
		Example: `  # Of the Service web in the namespace of the context, or in another one
  kubectl serviceproxy explain web --node n1
  kubectl serviceproxy explain shop/web --node n1

  # As a running proxy sees it, on its node, if it runs with --page
  kubectl serviceproxy explain shop/web --url http://127.0.0.1:10249/page/`,
		ValidArgsFunction: p.cluster.completeService,
		RunE:              func(cmd *cobra.Command, args []string) error { return p.explain(cmd.Context(), args[0]) },
	}
	p.addSource(cmd)
	p.addProxy(cmd)
	p.addURL(cmd)
	return cmd
}

// exactly requires one argument.
func exactly(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return fmt.Errorf("%s is missing: see %s --help", what, cmd.CommandPath())
		case len(args) > 1:
			return fmt.Errorf("unexpected argument %q after %s: see %s --help", args[1], what, cmd.CommandPath())
		}
		return nil
	}
}

// explain prints why the endpoints of a service are used.
func (p *program) explain(ctx context.Context, service string) error {
	ctx, cancel, err := p.begin(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	name, err := p.serviceName(service)
	if err != nil {
		return err
	}
	if p.url != "" {
		q := url.Values{"namespace": {name.Namespace}, "name": {name.Name}}
		return p.printFromPage(ctx, "/api/explain?"+q.Encode(), &localstate.Explanation{})
	}
	detect, _, err := p.readProxy(ctx)
	if err != nil {
		return err
	}
	feed, err := p.feed(ctx, detect, false)
	if err != nil {
		return err
	}
	return p.follow(ctx, feed, func(out io.Writer, _ *sink.Snapshot) error {
		e, ok := feed.Explain(name)
		if !ok {
			return unknownService(name)
		}
		return p.print(out, e)
	})
}

// serviceName parses the name of a Service, with or without its namespace.
func (p *program) serviceName(text string) (model.ServiceName, error) {
	namespace, name, err := p.cluster.qualify(text)
	if err == nil && (namespace == "" || name == "") {
		err = fmt.Errorf("%q is not the name of a Service, as SERVICE or NAMESPACE/SERVICE", text)
	}
	return model.ServiceName{Namespace: namespace, Name: name}, err
}

func unknownService(name model.ServiceName) error {
	return fmt.Errorf("unknown Service %v: check the name against kubectl get services -n %s; headless Services are no "+
		"proxy's, nor are those of another one (label service.kubernetes.io/service-proxy-name)", name, name.Namespace)
}
