package manifest

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// TestDocumentsOfAnySizeAreRead: a text that ends without a newline, at every length around the buffers' sizes.
func TestDocumentsOfAnySizeAreRead(t *testing.T) {
	for _, format := range []string{
		`{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1","annotations":{"x":"%s"}}}`,
		`# {apiVersion: v1, kind: Node, metadata: {name: n1, annotations: {x: %s}}}`[2:],
		"apiVersion: v1\nkind: Node\nmetadata:\n  name: n1\n  annotations:\n    x: %s",
	} {
		for _, size := range []int{0, 1, 4096, 8192, 65536} {
			for d := -100; d <= 1; d++ {
				value := strings.Repeat("x", max(size+d, 0))
				n := 0
				for document, err := range Documents(fmt.Appendf(nil, format, value)) {
					require.NoError(t, err)
					objects, err := document.Objects(true)
					require.NoError(t, err)
					require.Len(t, objects, 1)
					node, err := objects[0].Decode(true)
					require.NoError(t, err)
					require.Len(t, node.(*corev1.Node).Annotations["x"], len(value))
					n++
				}
				require.Equal(t, 1, n, "%d bytes", len(value))
			}
		}
	}
}

// TestDocumentsStopWhenTold: a caller whose context ends reads no further, wherever it is.
func TestDocumentsStopWhenTold(t *testing.T) {
	text := []byte("a: 1\n---\n{\"b\":1}{\"c\":1}\n---\n{d: 1}\n---\n\x00\n--- x\n---\n{\"e\"\n---\nf: 1\n")
	all := 0
	for range Documents(text) {
		all++
	}
	require.Equal(t, 7, all)
	for stop := 1; stop <= all; stop++ {
		n := 0
		for document := range Documents(text) {
			n++
			assert.Equal(t, n, document.Number)
			if n == stop {
				break
			}
		}
		assert.Equal(t, stop, n)
	}
}

func TestStrict(t *testing.T) {
	for _, text := range []string{
		"apiVersion: v1\nkind: Node\nmetadata: {name: a, name: b}\n",
		"apiVersion: v1\nkind: Node\nmetadata: {name: a}\nunknown: 1\n",
		`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}, "Spec": {}}`,
		`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "name": "b"}}`,
	} {
		for _, strict := range []bool{false, true} {
			failed := false
			for document, err := range Documents([]byte(text)) {
				require.NoError(t, err)
				objects, err := document.Objects(strict)
				if err == nil {
					_, err = objects[0].Decode(strict)
				}
				failed = err != nil
			}
			assert.Equal(t, strict, failed, text)
		}
	}
}

// BenchmarkConcatenated must not cost more for each value the more there are.
func BenchmarkConcatenated(b *testing.B) {
	for _, n := range []int{2_000, 20_000} {
		text := bytes.Repeat([]byte(`{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}`+"\n"), n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				for range Documents(text) {
				}
			}
		})
	}
}
