package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"sigs.k8s.io/kube-proxy-lib/cmd/internal/preflight"
	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
)

// readProxy returns how the proxy detects local pods, and which addresses serve node ports. Without --proxy the state
// is that of a proxy that cannot detect its pods, which a note says.
func (p *program) readProxy(ctx context.Context) (detect localstate.DetectLocal, of oracle.Config, err error) {
	c := &v1alpha2.KubeProxyConfiguration{}
	if p.proxy == "" {
		p.note = "Note: without --proxy it is unknown which clients are pods of the node. What follows is " +
			"right for a proxy that does not know either: it never masquerades traffic to cluster IPs. "
		if p.fromCluster() {
			p.note += "With --proxy daemonset the answer is that of the cluster's kube-proxy.\n"
		} else {
			p.note += "--proxy names a file, or flags, that say it.\n"
		}
	} else {
		dropin, warnings, err := preflight.Configuration(ctx, p.proxy, &p.objects.Cluster)
		if err != nil {
			return detect, of, inTime(ctx, fmt.Errorf("--proxy: %w", err))
		}
		for _, w := range warnings {
			p.note += fmt.Sprintf("Note: --proxy: %v\n", w)
		}
		c = dropin.Configuration
	}
	state, _, _, err := config.StateOptions(c, "", config.NodeIPs{Primary: model.IPv4, Families: model.Families()})
	if err != nil {
		return detect, of, fmt.Errorf("--proxy: %w", err)
	}
	addresses, err := config.NodePortAddresses(c)
	if err != nil {
		return detect, of, fmt.Errorf("--proxy: %w", err)
	}
	of.NodePortCIDRs, of.NodePortPrimary = addresses.CIDRs, addresses.Primary
	return state.DetectLocal, of, nil
}

// addURL adds the flag for the page of a running proxy.
func (p *program) addURL(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.url, "url", "", "ask the running proxy whose page is at this `URL` instead of a cluster")
}

// printFromPage prints the answer of a running proxy.
func (p *program) printFromPage(ctx context.Context, path string, answer any) error {
	if err := p.get(ctx, path, answer); err != nil {
		return err
	}
	return p.print(p.out, answer)
}

// get requests a path from a running proxy.
func (p *program) get(ctx context.Context, path string, answer any) error {
	address := strings.TrimSuffix(p.url, "/") + path
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return fmt.Errorf("--url: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		if ctx.Err() != nil {
			err = errors.New("no answer: a larger --timeout waits longer")
		}
		return fmt.Errorf("--url %s: %w; is the proxy running, and was it started with --page?", p.url, err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, 64<<20))
	if err != nil {
		return fmt.Errorf("--url: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", p.url, response.Status, strings.TrimSpace(string(body)))
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("%s: not a reply from a proxy's page: %w", p.url, err)
	}
	return nil
}
