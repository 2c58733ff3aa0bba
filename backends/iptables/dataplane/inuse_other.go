//go:build !linux

package dataplane

import (
	"context"

	"sigs.k8s.io/kube-proxy-lib/model"
)

func surveyVariant(context.Context, model.Family, Variant) (InUse, error) {
	return InUse{}, ErrNotLinux
}
