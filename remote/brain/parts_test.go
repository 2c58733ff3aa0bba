package brain

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
)

// What a node is sent is the difference between two versions of its parts, by value: a part that changed back is not
// sent, although it is another one.
func TestOwnPartsThatDiffer(t *testing.T) {
	type parts = map[model.ServiceName]*localstate.NodePart
	part := func(endpoints int) *localstate.NodePart {
		return &localstate.NodePart{LocalEndpoints: model.PerFamily[int]{IPv4: endpoints}}
	}
	difference := func(from, to *ownParts) parts { return maps.Collect(to.changesSince(from)) }
	a, b, c := name("a"), name("b"), name("c")
	var none *ownParts
	first := none.change([]ownChange{{Key: b, Value: part(1)}, {Key: a, Value: part(1)}}, 1)
	second := first.change([]ownChange{{Key: c, Value: part(1)}, {Key: b}, {Key: a, Value: part(2)}}, 2)
	third := second.change([]ownChange{{Key: a, Value: part(1)}, {Key: b, Value: part(1)}}, 3)
	gone := third.change([]ownChange{{Key: a}, {Key: b}, {Key: c}, {Key: name("unknown")}}, 4)

	assert.Equal(t, parts{a: part(1), b: part(1)}, difference(none, first))
	assert.Equal(t, parts{a: part(2), b: nil, c: part(1)}, difference(first, second))
	assert.Equal(t, parts{c: part(1)}, difference(first, third))
	assert.Equal(t, parts{a: nil, b: nil, c: nil}, difference(third, gone))
	assert.Equal(t, parts{a: nil, b: nil}, difference(first, none))
	for _, same := range []*ownParts{none, first, gone} {
		assert.Empty(t, difference(same, same))
	}
	assert.Empty(t, difference(gone, none))

	assert.Equal(t, part(2), second.part(a))
	assert.Nil(t, second.part(b))
	assert.Nil(t, none.part(a))
	assert.EqualValues(t, 2, second.revision)
	assert.Equal(t, wire.Digest{}, gone.sum)
	assert.Equal(t, none.change([]ownChange{{Key: a, Value: part(1)}, {Key: b, Value: part(1)},
		{Key: c, Value: part(1)}}, 5).sum, third.sum)
}
