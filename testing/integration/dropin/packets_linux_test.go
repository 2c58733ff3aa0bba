package dropin_test

import (
	"encoding/json"
	"errors"
	"net"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// question is traffic, and its expected outcome.
type question struct {
	name string
	from *testkit.Namespace
	to   string
	// asks is how often to ask at least. All answers together have to be ok, which may take more of them.
	asks    int
	timeout time.Duration
	ok      func(answers []answer) bool
}

type answer struct {
	reply
	err error
}

// String is for failures of tests.
func (a answer) String() string {
	if a.err != nil {
		return a.err.Error()
	}
	return a.pod + " to " + a.client
}

// manyAsks questions miss one of two pods once in a billion.
const manyAsks = 30

// put asks, and reports whether the outcome is as expected.
func (q question) put() (ok bool, answers []answer) {
	onThread(q.from, func() {
		for len(answers) < manyAsks {
			r, err := connect(q.to, q.timeout)
			answers = append(answers, answer{r, err})
			if ok = len(answers) >= q.asks && q.ok(answers); ok || err != nil {
				return
			}
		}
	})
	return ok, answers
}

// each returns a condition that holds if ok holds for every answer.
func each(ok func(answer) bool) func([]answer) bool {
	return func(answers []answer) bool {
		for _, a := range answers {
			if !ok(a) {
				return false
			}
		}
		return true
	}
}

// pods requires answers of all of these pods, and of no others.
func pods(names ...string) func([]answer) bool {
	return func(answers []answer) bool {
		found := map[string]bool{}
		for _, a := range answers {
			found[a.pod] = true
		}
		for _, n := range names {
			if !found[n] {
				return false
			}
		}
		return len(found) == len(names)
	}
}

// and requires two conditions.
func and(a, b func([]answer) bool) func([]answer) bool {
	return func(answers []answer) bool { return a(answers) && b(answers) }
}

// seen requires that the pods see a client with that address.
func seen(client string) func([]answer) bool {
	return each(func(a answer) bool { return a.client == client })
}

// onePod requires all answers to be from one pod, whichever.
func onePod(answers []answer) bool {
	return answers[0].pod != "" && each(func(a answer) bool { return a.pod == answers[0].pod })(answers)
}

var (
	refused = each(func(a answer) bool { return errors.Is(a.err, syscall.ECONNREFUSED) })
	silence = each(func(a answer) bool {
		timeout := net.Error(nil)
		return errors.As(a.err, &timeout) && timeout.Timeout()
	})
)

// exposed has services of all kinds, and the pods behind them.
type exposed struct {
	*lab
	asking, local, remote *pod
	questions             []question
}

func expose(l *lab) *exposed {
	e := &exposed{lab: l, asking: l.newPod("asking"), local: l.newPod("local"), remote: l.newPod("remote")}
	both := []endpoint{{e.local, nodeName}, {e.remote, otherNode}}
	vips, localVIPs := [2]string{"198.51.100.10", "2001:db8:1b::10"}, [2]string{"198.51.100.11", "2001:db8:1b::11"}
	elsewhereVIPs, external := [2]string{"198.51.100.12", "2001:db8:1b::12"}, [2]string{"192.0.2.10", "2001:db8:e::10"}
	web := l.service("web", loadBalancer(30080, vips), externalIPs(external))
	l.setEndpoints("web", both...)
	l.service("local", loadBalancer(30081, localVIPs), externalLocal)
	l.setEndpoints("local", both...)
	l.service("elsewhere", loadBalancer(30082, elsewhereVIPs), externalLocal)
	l.setEndpoints("elsewhere", both[1])
	sticky := l.service("sticky", affinity)
	l.setEndpoints("sticky", both...)
	empty := l.service("empty", nodePort(30083))

	for i, family := range families {
		at := func(ip string, port int) string { return net.JoinHostPort(ip, strconv.Itoa(port)) }
		add := func(name string, from *testkit.Namespace, to string, asks int, ok func([]answer) bool) {
			// A kernel that gets the refusal while it still sends the first packet notices only the second refusal, a
			// second later.
			e.questions = append(e.questions, question{family + ": " + name, from, to, asks, 5 * time.Second, ok})
		}
		add("a pod to a cluster IP, as itself", e.asking.ns, at(web[i], 80), 2,
			and(pods("local", "remote"), seen(e.asking.ips[i])))
		add("the node to a cluster IP", l.node, at(web[i], 80), 2, pods("local", "remote"))
		add("from outside to a cluster IP, masqueraded", l.client, at(web[i], 80), 2,
			and(pods("local", "remote"), seen(nodeIPs[i])))
		add("from outside to a node port, masqueraded", l.client, at(nodeIPs[i], 30080), 2,
			and(pods("local", "remote"), seen(nodeIPs[i])))
		add("a pod to a node port", e.asking.ns, at(nodeIPs[i], 30080), 2, pods("local", "remote"))
		add("from outside to a VIP", l.client, at(vips[i], 80), 2, and(pods("local", "remote"), seen(nodeIPs[i])))
		add("from outside to an external IP", l.client, at(external[i], 80), 2,
			and(pods("local", "remote"), seen(nodeIPs[i])))
		add("policy Local, VIP, from outside: the local pod, as itself", l.client, at(localVIPs[i], 80), 5,
			and(pods("local"), seen(clientIPs[i])))
		add("policy Local, node port, from outside: the local pod, as itself", l.client, at(nodeIPs[i], 30081), 5,
			and(pods("local"), seen(clientIPs[i])))
		add("policy Local, VIP, from a pod: all pods", e.asking.ns, at(localVIPs[i], 80), 2, pods("local", "remote"))
		add("policy Local without a local pod: silence", l.client, at(elsewhereVIPs[i], 80), 1, silence)
		e.questions[len(e.questions)-1].timeout = time.Second
		add("session affinity", e.asking.ns, at(sticky[i], 80), 20, onePod)
		add("no endpoints: refused, cluster IP", e.asking.ns, at(empty[i], 80), 1, refused)
		add("no endpoints: refused, node port", l.client, at(nodeIPs[i], 30083), 1, refused)
	}
	return e
}

// await waits until each question has been answered as expected once, and returns how long that took.
func (e *exposed) await() time.Duration {
	e.t.Helper()
	begin := time.Now()
	for _, q := range e.questions {
		for {
			ok, answers := q.put()
			if ok {
				break
			}
			require.True(e.t, time.Since(begin) < waitTimeout, "%s: %v", q.name, answers)
			time.Sleep(5 * time.Millisecond) // nothing signals when packets would get through
		}
	}
	return time.Since(begin)
}

// assertAll puts each question once.
func (e *exposed) assertAll(when string) {
	e.t.Helper()
	for _, q := range e.questions {
		ok, answers := q.put()
		assert.True(e.t, ok, "%s: %s: %v", when, q.name, answers)
	}
}

// rules returns all rules in the kernel, of any mode, without counters.
func (l *lab) rules() string {
	var all []byte
	for _, command := range [][]string{{"nft", "list", "ruleset"}, {"iptables-legacy-save"},
		{"ip6tables-legacy-save"}} {
		path, found := need.Find(command[0])
		if !found {
			continue
		}
		l.node.Do(func() error {
			out, err := exec.Command(path, command[1:]...).Output()
			all = append(all, out...)
			return err
		})
	}
	return string(all)
}

func TestFromStartToPacketsAndBack(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, cluster.Options{})
			e := expose(l)
			config := l.config(mode, l.AdminKubeconfig(l.relay.Port))
			p := l.start("--config=" + config)
			t.Logf("everything worked %v after the start", e.await())
			e.assertAll("while it runs")

			t.Run("what it serves by HTTP", func(t *testing.T) {
				for _, path := range []string{"/healthz", "/livez"} {
					code, body := l.get("http://" + nodeIPs[0] + ":10256" + path)
					assert.Equal(t, 200, code, path)
					assert.Contains(t, body, `"healthy":true`)
				}
				code, body := l.get("http://127.0.0.1:10249/metrics")
				assert.Equal(t, 200, code)
				assert.Contains(t, body, `kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"}`)
				code, body = l.get("http://127.0.0.1:10249/proxyMode")
				assert.Equal(t, 200, code)
				assert.Equal(t, mode, body)
				code, body = l.get("http://127.0.0.1:10249/configz")
				assert.Equal(t, 200, code)
				var configz map[string]map[string]any
				require.NoError(t, json.Unmarshal([]byte(body), &configz))
				assert.Equal(t, mode, configz["kubeproxy.config.k8s.io"]["mode"])
				code, _ = l.get("http://127.0.0.1:10249/healthz")
				assert.Equal(t, 200, code)
			})

			p.terminate()
			e.assertAll("after SIGTERM the rules stay")

			cleanup := l.start("--cleanup")
			cleanup.wait()
			require.NoError(t, cleanup.err)
			assert.NotContains(t, l.rules(), "10.96.")
			assert.NotContains(t, l.rules(), "fd00:96:")
			assert.NotContains(t, l.rules(), rulesOf[mode], "not even what is empty")
			_, err := ask(l.client, net.JoinHostPort(nodeIPs[0], "30080"))
			assert.ErrorIs(t, err, syscall.ECONNREFUSED, "a node port is nobody's any more")
		})
	}
}
