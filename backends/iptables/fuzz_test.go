package iptables_test

import (
	"regexp"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// FuzzNames: names of services are in comments, and hashes of them in the names of chains, and nowhere else. The
// programs, where they exist, must read the comments as comments.
func FuzzNames(f *testing.F) {
	comment := regexp.MustCompile(`--comment ("(\\.|[^"\\])*"|\S+)`)
	hash := regexp.MustCompile(`[A-Z2-7]{16}`)
	backendtest.FuzzNames(f, func(t testing.TB, values ...any) string {
		r := newRig(t, iptables.Options{})
		r.Set(values...)
		r.Sync()
		return hash.ReplaceAllString(comment.ReplaceAllString(r.dump(model.IPv4), "--comment"), "HASH")
	})
}
