//go:build !linux

package iptables_test

import (
	"testing"

	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
)

func replay(testing.TB, *dataplane.Fake) {}
