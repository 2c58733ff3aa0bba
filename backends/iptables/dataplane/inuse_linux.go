package dataplane

import (
	"context"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// surveyVariant is Survey for one variant, whatever is wrong with the other.
func surveyVariant(ctx context.Context, f model.Family, v Variant) (InUse, error) {
	ns, err := currentNamespace()
	if err != nil {
		return InUse{}, err
	}
	defer func() { _ = ns.close() }()
	p, err := findPrograms(ctx, f, v, 1)
	if err != nil {
		return InUse{}, err
	}
	return p.inUse(ctx, ns)
}
