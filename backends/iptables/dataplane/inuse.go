package dataplane

import (
	"context"
	"errors"
	"fmt"
	"os/exec"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// OpenInUse opens what may have to be cleaned up: those that have any rule, of the given families (nil for both) and of
// one variant or both. The others are left alone, because looking at a table of iptables-legacy creates it. It is no
// error if there is nothing, or no iptables at all.
//
// It returns what it could open even if it fails for others; the error joins those failures. Close what it returns in
// any case.
func OpenInUse(ctx context.Context, families []model.Family, only Variant) ([]Interface, error) {
	if families == nil {
		all := model.Families()
		families = all[:]
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
			if err != nil && !IsAbsent(err) {
				errs = append(errs, fmt.Errorf("iptables-%s: %w", v, err))
			}
		}
	}
	return found, errors.Join(errs...)
}

// IsAbsent reports whether an error of New says that this machine has no such iptables, or no such IP family. Anything
// else may pass.
func IsAbsent(err error) bool {
	return errors.Is(err, exec.ErrNotFound) || errors.Is(err, ErrNoTable) || errors.Is(err, errors.ErrUnsupported)
}

// inUse is what the node uses a variant for.
type inUse struct {
	variant Variant
	hint    bool // the kubelet says that this is the variant of the node
	rules   int  // in all tables
}
