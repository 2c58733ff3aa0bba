package dataplane

import (
	"context"
	"errors"
	"fmt"
	"os/exec"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// OpenInUse opens every iptables with rules, for a clean-up: of the given families (nil for both) and of one variant or
// both. It does not touch the others, because listing a table of iptables-legacy creates it. It is not an error if none
// has rules or iptables is not installed.
//
// It returns those that it could open; the error joins the failures. Always close the result.
func OpenInUse(ctx context.Context, families []model.Family, only Variant) ([]Interface, error) {
	if families == nil {
		families = model.Families()
	}
	var found []Interface
	var errs []error
	for _, f := range families {
		for _, v := range []Variant{NFT, Legacy} {
			if only != "" && v != only {
				continue
			}
			used, err := surveyVariant(ctx, f, v)
			if err == nil && used.rules > 0 {
				var d *IPTables
				if d, err = New(ctx, Options{Family: f, Variant: v}); err == nil {
					found = append(found, d)
				}
			}
			if err != nil && (!IsAbsent(err) || errors.Is(err, ErrUnusable)) { // whose rules nobody has seen
				errs = append(errs, fmt.Errorf("iptables-%s: %w", v, err))
			}
		}
	}
	return found, errors.Join(errs...)
}

// IsAbsent reports whether an error of New says that this machine does not have the IP family, or an iptables for it
// that can run. Other errors may be temporary.
func IsAbsent(err error) bool {
	return errors.Is(err, exec.ErrNotFound) || errors.Is(err, ErrUnusable) || errors.Is(err, ErrNoTable) ||
		errors.Is(err, errors.ErrUnsupported)
}

// inUse describes the node's use of a variant.
type inUse struct {
	variant Variant
	hint    bool // the kubelet's hint names this variant
	rules   int  // in all tables
}
