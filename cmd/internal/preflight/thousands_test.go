package preflight

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

// A comparison takes time in proportion to what is compared: thousands of each thing in turn, without differences and
// with as many.
func TestThousandsAreComparedInLinearTime(t *testing.T) {
	contest := func(n int) (list []string) {
		for i := range n {
			list = append(list, fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {namespace: other, name: s%d, creationTimestamp: "2026-02-02T00:00:00Z"}
spec: {clusterIPs: [10.96.%[2]d.%[3]d], clusterIP: 10.96.%[2]d.%[3]d, ipFamilies: [IPv4], externalIPs: [198.51.100.1],
  ports: [{name: http, port: 80}]}`, i, 1+i/250, 1+i%250))
		}
		return list
	}
	for name, make := range map[string]struct {
		n     int
		files func(n int) string
		flags func(n int) []string
	}{
		"external IPs": {n: 4000, files: func(n int) string { return filled("", "externalIPs: ["+externalIPs(n)+"]") },
			flags: func(int) []string { return []string{"--to", "--feature-gates=AllowServiceExternalIPs=false"} }},
		"VIPs with health checks": {n: 2000, files: func(n int) string {
			return filled("nodePort: 30080", "externalIPs: ["+externalIPs(n)+"]\n  "+healthCheck)
		}, flags: func(int) []string { return []string{"--from", few, "--to", few} }},
		"ports":     {n: 500, files: func(n int) string { return filled(ports(n), "") }},
		"endpoints": {n: 2000, files: func(n int) string { return filled("", "") + endpoints(n) }},
		"endpoints in two slices": {n: 1000, files: func(n int) string {
			unready := strings.ReplaceAll(endpoints(n), "ready: true", "ready: false")
			return filled("", "", sliceOf("a", "web", "addresses: [10.244.1.9]")+"\n"+endpoints(n),
				sliceOf("b", "web", "addresses: [10.244.1.9]")+"\n"+unready)
		}},
		"Services": {n: 250, files: func(n int) string { return filled("", "", contest(n)[1:]...) }},
		"refused":  {n: 250, files: func(n int) string { return filled("", "externalIPs: [198.51.100.1]", contest(n)...) }},
		"addresses of the host": {n: 2000, files: func(int) string { return filled("nodePort: 30080", "type: NodePort") },
			flags: func(n int) []string {
				return []string{"--host-addresses", strings.ReplaceAll(externalIPs(n), " ", ""), "--to",
					"--nodeport-addresses=0.0.0.0/0"}
			}},
	} {
		t.Run(name, func(t *testing.T) {
			with := func(n int) func() []testkit.Step {
				file := write(t, make.files(n))
				args := []string{"--file", file, "--node-name", "node-1"}
				if make.flags != nil {
					args = append(args, make.flags(n)...)
				}
				return func() (steps []testkit.Step) {
					for _, same := range []bool{false, true} {
						more := args
						if same {
							more = append(args, "--same")
						}
						steps = append(steps, testkit.Step{Name: fmt.Sprint("--same=", same), Work: testkit.Measure(func() {
							_, err := run(t.Context(), more, io.Discard)
							require.NoError(t, err)
						})})
					}
					return steps
				}
			}
			testkit.CompareTimes(t, with(make.n), with(4*make.n))
		})
	}
}
