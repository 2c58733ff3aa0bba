package diffstore_test

import (
	"fmt"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/diffstore"
)

// value is about as long as the rules of one service.
const value = "ip daddr 10.0.0.1 tcp dport 80 dnat to numgen random mod 10 map @endpoints-of-default/web:http/TCP"

func keys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("namespace-%d/service-%d", i%100, i)
	}
	return keys
}

// BenchmarkOneChanged describes everything and finds the one entry that differs.
func BenchmarkOneChanged(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		keys := keys(n)
		b.Run(fmt.Sprintf("Buffer/%d", n), func(b *testing.B) {
			s := diffstore.NewBufferStore[string]()
			run(b, s, func(i int) {
				for _, key := range keys {
					s.Get(key).WriteString(value)
				}
				s.Get(keys[i%n]).WriteByte(byte(i))
			})
		})
		b.Run(fmt.Sprintf("Any/%d", n), func(b *testing.B) {
			s := diffstore.NewAnyStore[string](func(a, b string) bool { return a == b })
			run(b, s, func(i int) {
				for _, key := range keys {
					s.Get(key).Set(value)
				}
				s.Get(keys[i%n]).Set("another")
			})
		})
	}
}

// run runs waves, each different from the one before.
func run[L diffstore.Leaf[L]](b *testing.B, s *diffstore.Store[string, L], describe func(i int)) {
	b.ReportAllocs()
	for i := range 3 {
		s.Reset()
		describe(i)
		s.Done()
	}
	for i := 3; b.Loop(); i++ {
		s.Reset()
		describe(i)
		s.Done()
		if !s.HasChanges() {
			b.Fatal("no change")
		}
	}
}

// BenchmarkOneAmended describes only what differs.
func BenchmarkOneAmended(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		keys := keys(n)
		b.Run(fmt.Sprintf("Buffer/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			s := diffstore.NewBufferStore[string]()
			for _, key := range keys {
				s.Get(key).WriteString(value)
			}
			s.Done()
			for i := 0; b.Loop(); i++ {
				s.Amend()
				leaf := s.Get(keys[i%n])
				fmt.Fprint(leaf, value, i)
				s.Done()
				if !s.HasChanges() {
					b.Fatal("no change")
				}
			}
		})
	}
}
