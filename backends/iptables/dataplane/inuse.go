package dataplane

import (
	"context"
	"errors"
	"os/exec"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// OpenInUse opens what there may be something to clean up in: of the families, nil for all, and of both variants, or of
// one, those that have any rule. The others are left alone, because to look at a table of iptables-legacy makes it. That there is nothing, or
// no iptables at all, is no error. Close what it returns.
func OpenInUse(ctx context.Context, families []model.Family, only Variant) ([]Interface, error) {
	if families == nil {
		all := model.Families()
		families = all[:]
	}
	var found []Interface
	fail := func(err error) ([]Interface, error) {
		for _, d := range found {
			err = errors.Join(err, d.Close())
		}
		return nil, err
	}
	for _, f := range families {
		variants, err := Survey(ctx, f)
		if err != nil && !isAbsent(err) {
			return fail(err)
		}
		for _, v := range variants {
			if v.Rules == 0 || only != "" && v.Variant != only {
				continue
			}
			d, err := New(ctx, Options{Family: f, Variant: v.Variant})
			if err == nil {
				found = append(found, d)
			} else if !isAbsent(err) {
				return fail(err)
			}
		}
	}
	return found, nil
}

// isAbsent tells whether an error says that this machine has no such iptables.
func isAbsent(err error) bool {
	return errors.Is(err, exec.ErrNotFound) || errors.Is(err, ErrNoTable) || errors.Is(err, ErrNotLinux)
}
