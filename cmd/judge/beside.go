package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/judge"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// pair checks flags that only apply to a single proxy, or only to two.
func (o *options) pair(beside *options) error {
	if beside.proxy == "" {
		if beside.cleanup != "" || beside.name != "" || o.clusters != 0 || o.time != 0 {
			return errors.New("--beside-cleanup, --beside-name, --clusters and --time need --beside")
		}
		return nil
	}
	if o.run != "" || o.core || o.breaks != "" || o.lanes != 0 || o.sizes != nil {
		return errors.New("--run, --core, --break, --lanes and --speed are about one proxy, not for --beside")
	}
	if o.clusters < 0 || o.time < 0 {
		return errors.New("--clusters and --time must not be negative")
	}
	beside.lacks = o.lacks
	if !strings.Contains(beside.proxy, "{flags}") {
		beside.assume = o.assume
	}
	o.beside = beside
	return nil
}

// compare compares the proxy with the one of --beside.
func (o *options) compare(ctx context.Context, p program.Proxy,
	j judge.Options) (*report.Report, error) {
	o.beside.report = filepath.Join(o.report, "beside")
	other, err := o.beside.program()
	if err != nil {
		return nil, fmt.Errorf("--beside: %w", err)
	}
	if err := errors.Join(o.findPrograms(ctx), o.beside.findPrograms(ctx)); err != nil {
		return nil, err
	}
	names := [2]string{o.implementation().String(), o.beside.implementation().String()}
	if names[0] == names[1] {
		names[0], names[1] = names[0]+" (--proxy)", names[1]+" (--beside)"
	}
	r, err := judge.Compare(ctx, [2]program.Proxy{p, other}, judge.CompareOptions{Names: names,
		Clusters: o.clusters, Time: o.time, Seed: j.Seed, StartTimeout: j.StartTimeout, EvenIfBusy: j.EvenIfBusy, Say: j.Say})
	if r != nil {
		r.Beside = &report.Implementation{Name: o.beside.implementation().Name}
	}
	return r, err
}
