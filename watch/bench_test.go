package watch

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"k8s.io/klog/v2"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// BenchmarkFiles reads a file: for the first time, and again after the port of one Service has changed.
func BenchmarkFiles(b *testing.B) {
	yamlText, jsonText := cluster(10_000, 10)
	var concatenated strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&concatenated,
			`{"apiVersion":"v1","kind":"Service","metadata":{"name":"s-%d"},"spec":{"ports":[{"port":8080}]}}`+"\n", i)
	}
	for _, format := range []struct{ name, text string }{
		{"yaml/10000x10", yamlText}, {"json/10000x10", jsonText}, {"json/20000documents", concatenated.String()},
	} {
		read := func(s *fileState, text []byte) int {
			changes, malformed, err := s.read(b.Context(), location{fsys: fstest.MapFS{"f.yaml": {Data: text}}})
			if err != nil || len(malformed) > 0 {
				b.Fatal(malformed, err)
			}
			return len(changes)
		}
		text := []byte(format.text)
		other := bytes.Replace(text, []byte("8080"), []byte("8081"), 1)
		b.Run("First/"+format.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if n := read(newFileState("", klog.Background()), text); n != 20_000 {
					b.Fatal(n)
				}
			}
		})
		b.Run("OneChange/"+format.name, func(b *testing.B) {
			s := newFileState("", klog.Background())
			read(s, text)
			b.ReportAllocs()
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if n := read(s, other); n != 1 {
					b.Fatal(n)
				}
				text, other = other, text
			}
		})
	}
}

// nothing is a Handler that does nothing.
type nothing struct{}

func (nothing) Update(...Change) {}
func (nothing) Synced()          {}

// BenchmarkClientsetStore is what a Clientset does once client-go has decoded an object or a list.
func BenchmarkClientsetStore(b *testing.B) {
	slices := make([]any, 10_000)
	for i := range slices {
		s := slice(fmt.Sprint("slice-", i))
		for range 10 {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{TargetRef: &corev1.ObjectReference{}})
		}
		slices[i] = s
	}
	b.Run("Relist/10000x10", func(b *testing.B) {
		s := newNameStore(endpointSlices, nothing{}, nil)
		b.ReportAllocs()
		for b.Loop() {
			_ = s.Replace(slices, "")
		}
	})
	b.Run("OneChange/10000x10", func(b *testing.B) {
		s := newNameStore(endpointSlices, nothing{}, nil)
		_ = s.Replace(slices, "")
		b.ReportAllocs()
		for b.Loop() {
			_ = s.Update(slices[0])
		}
	})
}
