package nft_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

func TestSyncsWaitForWhoeverListsTheRuleset(t *testing.T) {
	r := newRig(t, nft.Options{})
	var backend sink.Yielder = r.backend
	assert.Zero(t, backend.Yield())
	r.fake.Reading = 10 * time.Millisecond
	assert.Equal(t, 10*time.Millisecond, backend.Yield())
}
