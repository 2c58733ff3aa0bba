//go:build !linux

package ipvs

import "sigs.k8s.io/kube-proxy-lib/nodeaddr"

func systemHost() (nodeaddr.Host, func() error, error) {
	return &nodeaddr.System{}, func() error { return nil }, nil
}
