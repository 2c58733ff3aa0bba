package syncing_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/internal/syncing"
)

// list is an error that == panics at.
type list []string

func (l list) Error() string { return strings.Join(l, ", ") }

func TestOnlyTheSameValueIsTheSame(t *testing.T) {
	one, other := errors.New("refused"), errors.New("refused")
	assert.True(t, syncing.SameError(nil, nil))
	assert.True(t, syncing.SameError(one, one))
	assert.False(t, syncing.SameError(one, nil))
	assert.False(t, syncing.SameError(nil, one))
	assert.False(t, syncing.SameError(one, other), "the same text says nothing about what is inside")
	assert.False(t, syncing.SameError(list{"a"}, list{"a"}))
	assert.False(t, syncing.SameError(one, list{"a"}))
}
