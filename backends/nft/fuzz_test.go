package nft_test

import (
	"regexp"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// FuzzNames: names of services are in comments, and in what chains and sets are called, and nowhere else. The fake
// refuses names and comments that nft could not read again.
func FuzzNames(f *testing.F) {
	comment := regexp.MustCompile(`"[^"\n]*"`)
	own := regexp.MustCompile(`[a-z2-7]{16}(-[A-Za-z0-9/_.-]*)?`)
	backendtest.FuzzNames(f, func(t testing.TB, values ...any) string {
		r := newRig(t, nft.Options{Common: frontend.Common{Families: []model.Family{model.IPv4}}})
		r.Set(values...)
		r.Sync()
		return own.ReplaceAllString(comment.ReplaceAllString(r.dump(model.IPv4), `""`), "OWN")
	})
}
