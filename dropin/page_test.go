package dropin

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
)

// The page is there on request, and shows what the backend made of a Service and why endpoints are used.
func TestThePageIsServedOnRequest(t *testing.T) {
	needModesOfLinux(t)
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, cluster()...)
			stop := r.start(t, "--proxy-mode="+mode, "--page", "--cluster-cidr=10.244.0.0/16",
				"--iptables-min-sync-period=0")
			at := r.url(t, "127.0.0.1:10249") + "/page/"
			var shown struct {
				Service  *model.Service
				Rules    string
				Pictures []struct {
					Groups []struct{ Endpoints []struct{ Why string } }
				}
			}
			require.Eventually(t, func() bool {
				code, body := get(t, at+"api/service?namespace=default&name=web")
				return code == 200 && json.Unmarshal([]byte(body), &shown) == nil && shown.Service != nil
			}, time.Minute, time.Millisecond)
			assert.Equal(t, "ready", shown.Pictures[0].Groups[0].Endpoints[0].Why)
			if mode == "nftables" {
				assert.Contains(t, shown.Rules, "10.96.0.10 . tcp . 80")
			}
			_, body := get(t, at)
			assert.Contains(t, body, "<!doctype html>")
			_, body = get(t, at+"api/state")
			assert.Contains(t, body, `"phase":"serving"`)
			assert.Contains(t, body, `"repairs":{"total":0`)

			var answer oracle.Answer
			_, body = get(t, at+"api/flow?q="+url.QueryEscape("outside 203.0.113.7 -> 192.0.2.1:30080"))
			require.NoError(t, json.Unmarshal([]byte(body), &answer), body)
			assert.Equal(t, "10.244.1.5:8080 (source NAT)", answer.Outcome.Endpoints[0].String())
			require.NoError(t, stop())
		})
	}
}

func TestThereIsNoPageUnlessItIsAskedFor(t *testing.T) {
	needModesOfLinux(t)
	r := newRig(t, cluster()...)
	stop := r.start(t, arguments...)
	r.waitFor(t, tableIPv4, contains("10.244.1.5"))
	code, _ := get(t, r.url(t, "127.0.0.1:10249")+"/page/")
	assert.Equal(t, 404, code)
	require.NoError(t, stop())
}

func TestThePageIsForThisMachineAlone(t *testing.T) {
	for _, args := range []string{
		"--page --metrics-bind-address=0.0.0.0:10249", "--page --metrics-bind-address=192.0.2.1",
		"--page --metrics-bind-address=",
		"--page --metrics-port=0",
	} {
		r := newRig(t)
		assert.ErrorContains(t, r.run(strings.Fields(args)...), "with --page-bind-address=127.0.0.1:10250", args)
	}
	for _, args := range []string{"--page --page-bind-address=0.0.0.0:80", "--page --page-bind-address=127.0.0.1"} {
		assert.ErrorContains(t, newRig(t).run(strings.Fields(args)...), "is not a loopback address with a port", args)
	}
	assert.ErrorContains(t, newRig(t).run("--page-bind-address=127.0.0.1:80"), "there is no page without --page")
	for _, args := range []string{"--page", "--page --metrics-bind-address=[::1]:80",
		"--page --metrics-bind-address=127.0.0.2",
		"--page --metrics-bind-address=0.0.0.0 --page-bind-address=127.0.0.1:10250",
		"--page --metrics-bind-address= --page-bind-address=[::1]:10250"} {
		s, _, err := fromArgs(t, strings.Fields(args)...)
		require.NoError(t, err, args)
		assert.True(t, s.Page)
	}
}

// The page has an address of its own if it is given one, so that Prometheus can reach the metrics from elsewhere.
func TestThePageOnAnAddressOfItsOwn(t *testing.T) {
	needModesOfLinux(t)
	r := newRig(t, cluster()...)
	stop := r.start(t, append([]string{"--page", "--page-bind-address=127.0.0.1:10250",
		"--metrics-bind-address=0.0.0.0:10249"}, arguments...)...)
	r.waitServed(t)
	own, metrics := r.url(t, "127.0.0.1:10250"), r.url(t, "0.0.0.0:10249")
	_, body := get(t, own+"/page/")
	assert.Contains(t, body, "<!doctype html>")
	code, _ := get(t, own+"/metrics")
	assert.Equal(t, 404, code)
	code, _ = get(t, metrics+"/page/")
	assert.Equal(t, 404, code)
	code, _ = get(t, metrics+"/metrics")
	assert.Equal(t, 200, code)
	code, body = get(t, own+"/page/api/explain?namespace=default&name=web")
	assert.Equal(t, 200, code)
	assert.Contains(t, body, `"topology"`)
	code, _ = get(t, own+"/page/api/explain?namespace=default&name=nobody")
	assert.Equal(t, 404, code)
	require.NoError(t, stop())
}
