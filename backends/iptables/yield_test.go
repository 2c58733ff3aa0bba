package iptables_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// The families have rulesets of their own: the Sync of both waits for the longer one.
func TestSyncsWaitForWhoeverListsTheRuleset(t *testing.T) {
	r := newRig(t, iptables.Options{})
	var backend sink.Yielder = r.backend
	assert.Zero(t, backend.Yield())
	r.fakes[model.IPv6].Reading = 10 * time.Millisecond
	assert.Equal(t, 10*time.Millisecond, backend.Yield())
	r.fakes[model.IPv4].Reading = 20 * time.Millisecond
	assert.Equal(t, 20*time.Millisecond, backend.Yield())
}
