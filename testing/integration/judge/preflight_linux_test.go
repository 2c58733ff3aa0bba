package judge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// move is a move from one proxy to another.
type move struct {
	name          string
	before, after proxy
	// different: random clusters show a difference, or else this test would show nothing.
	different bool
}

// proxy is a program with its flags.
type proxy struct {
	kubeProxy bool // Kubernetes' own
	flags     string
}

func moves() []move {
	const everywhere = " --nodeport-addresses=0.0.0.0/0,::/0"
	return []move{
		{name: "from kube-proxy in mode iptables to nftables", before: proxy{true, "--proxy-mode=iptables"},
			after: proxy{false, "--proxy-mode=nftables"}, different: true},
		{name: "from node ports on all addresses to the primary ones", different: true,
			before: proxy{false, "--proxy-mode=nftables" + everywhere}, after: proxy{false, "--proxy-mode=nftables"}},
		{name: "from node ports on the primary addresses to all", different: true,
			before: proxy{false, "--proxy-mode=nftables"}, after: proxy{false, "--proxy-mode=nftables" + everywhere}},
		{name: "from kube-proxy in mode nftables", before: proxy{true, "--proxy-mode=nftables"},
			after: proxy{false, "--proxy-mode=nftables"}},
		{name: "from kube-proxy in mode iptables", before: proxy{true, "--proxy-mode=iptables"},
			after: proxy{false, "--proxy-mode=iptables"}},
		{name: "from mode iptables to nftables", before: proxy{false, "--proxy-mode=iptables"},
			after: proxy{false, "--proxy-mode=nftables"}, different: true},
		{name: "to a proxy without external IPs", before: proxy{false, "--proxy-mode=nftables"}, different: true,
			after: proxy{false, "--proxy-mode=nftables --feature-gates=AllowServiceExternalIPs=false"}},
		{name: "to a proxy that masquerades everything", before: proxy{false, "--proxy-mode=nftables"}, different: true,
			after: proxy{false, "--proxy-mode=nftables --masquerade-all"}},
	}
}

// On random clusters, preflight announces each difference between two proxies that packets show: the same destination
// and the same kind of sender, or everything about the service.
func TestPreflightAnnouncesWhatPacketsShow(t *testing.T) {
	need.Root(t)
	for _, name := range []string{"nft", "iptables", "ip6tables", "iptables-restore", "ip6tables-restore"} {
		need.Program(t, name)
	}
	folder := cluster.Build(t, "judge", "kube-proxy")
	ours := filepath.Join(folder, "kube-proxy")
	list, limit := moves(), "100s"
	if !need.IsDeep() {
		list, limit = list[:1], "60s"
	}
	for i, m := range list {
		t.Run(m.name, func(t *testing.T) {
			dir := t.TempDir()
			about := filepath.Join(dir, "about") // the node
			command := func(p proxy) string {
				program := ours
				if p.kubeProxy {
					program = cluster.Program(t, "kube-proxy")
				}
				return fmt.Sprintf("ip -o addr >%s; echo {node} >%s; echo {clusterCIDRs} >%s; exec %s --kubeconfig {kubeconfig} "+
					"--hostname-override {node} --cluster-cidr {clusterCIDRs} --conntrack-max-per-core 0 --oom-score-adj 0 %s",
					about+".addresses", about+".node", about+".ranges", program, p.flags)
			}
			out, err := exec.Command(filepath.Join(folder, "judge"), "--report", dir, "--seed", fmt.Sprint(i+1),
				"--clusters", "10", "--time", limit, "--proxy", command(m.before), "--beside", command(m.after),
			).CombinedOutput()
			var exit *exec.ExitError // what differs counts as a failure
			if err != nil && !errors.As(err, &exit) {
				require.NoError(t, err)
			}
			text, err := os.ReadFile(filepath.Join(dir, "report.yaml"))
			require.NoError(t, err, "%s", out)
			r, err := report.Read(text)
			require.NoError(t, err)
			require.Empty(t, r.Problem, "%s", out)
			var shown int
			for _, result := range r.Results {
				if result.Profile != report.Comparison || result.Verdict != report.Failed {
					continue
				}
				for _, f := range result.Failures {
					if f.Flow == nil {
						assert.Fail(t, result.Case, "%+v", f)
						continue
					}
					shown++
					announced := preflight(t, folder, about, m, f.Objects)
					assert.True(t, slices.ContainsFunc(announced, func(d difference) bool { return d.announces(result, f) }),
						"%s\n%+v\n%s\npreflight says:\n%+v", result.Case, *f.Flow, f.Objects, announced)
				}
			}
			need.That(t, shown > 0 || r.Counts(report.Comparison).NotJudged == 0, "a machine that is less busy")
			t.Logf("%d kinds of differences", shown)
			assert.True(t, shown > 0 || !m.different, "%s", out)
		})
	}
}

// kubernetes is what every cluster has: without any Service, EndpointSlice or ServiceCIDR preflight takes a dump for
// incomplete.
const kubernetes = `
---
apiVersion: v1
kind: Service
metadata: {namespace: default, name: kubernetes}
spec: {clusterIPs: [10.96.255.1], ipFamilies: [IPv4], ports: [{name: https, port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: kubernetes, labels: {kubernetes.io/service-name: kubernetes}}
addressType: IPv4
ports: [{name: https, port: 6443}]
endpoints: [{addresses: [198.18.255.1]}]
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: of-kubernetes}
spec: {cidrs: [10.96.255.0/30]}
`

// preflight runs "kube-proxy preflight", which is in a folder, with the objects of a finding.
func preflight(t *testing.T, folder, about string, m move, objects string) (list []difference) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "objects.yaml")
	require.NoError(t, os.WriteFile(file, []byte(lastObjects(objects)+kubernetes), 0o644))
	read := func(what string) string {
		text, err := os.ReadFile(about + what)
		require.NoError(t, err)
		return strings.TrimSpace(string(text))
	}
	var addresses []string
	for _, found := range regexp.MustCompile(`inet6? ([^/ ]+)/\d+ .*scope global`).FindAllStringSubmatch(
		read(".addresses"), -1) {
		addresses = append(addresses, found[1])
	}
	args := []string{"preflight", "--from", m.before.flags + " --cluster-cidr=" + read(".ranges"), "--to",
		m.after.flags + " --cluster-cidr=" + read(".ranges"), "--file", file, "--node-name", read(".node"),
		"--host-addresses", strings.Join(addresses, ","), "-o", "json"}
	if !m.before.kubeProxy {
		args = append(args, "--same")
	}
	var out, problems bytes.Buffer
	command := exec.Command(filepath.Join(folder, "kube-proxy"), args...)
	command.Stdout, command.Stderr = &out, &problems
	if err := command.Run(); err != nil {
		require.Equal(t, 1, command.ProcessState.ExitCode(), "%s", problems.Bytes())
	}
	require.NoError(t, json.Unmarshal(out.Bytes(), &list), "%s", out.Bytes())
	return list
}
