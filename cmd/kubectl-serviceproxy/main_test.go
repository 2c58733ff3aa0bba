package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const cluster = "../../examples/mock/cluster"

// run runs the program.
func run(ctx context.Context, args []string, out, notes io.Writer) error {
	return (&program{out: out, notes: notes}).run(ctx, args)
}

// output runs a command on the mock example's cluster.
func output(t *testing.T, command string, args ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), append([]string{command, "--file", cluster, "--node", "node-1"}, args...), &out,
		io.Discard))
	return out.Bytes()
}

func TestText(t *testing.T) {
	fakemodel.Golden(t, "testdata/state.txt", string(output(t, "state")))
}
func TestJSON(t *testing.T) {
	fakemodel.Golden(t, "testdata/state.json", string(output(t, "state", "-o", "json")))
}
func TestYAML(t *testing.T) {
	fakemodel.Golden(t, "testdata/state.yaml", string(output(t, "state", "-o", "yaml")))
}

func TestYAMLSaysTheSameAsJSON(t *testing.T) {
	converted, err := yaml.YAMLToJSON(output(t, "state", "-o", "yaml"))
	require.NoError(t, err)
	assert.JSONEq(t, string(output(t, "state", "-o", "json")), string(converted))
}

func TestJSONCanBeReadBackIntoTheModel(t *testing.T) {
	var got struct {
		Node     *model.Node
		Services []struct {
			Service   *model.Service
			Endpoints []*model.Endpoint
		}
	}
	d := json.NewDecoder(bytes.NewReader(output(t, "state", "-o", "json")))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&got))
	assert.Equal(t, "zone-a", got.Node.Zone)
	require.Len(t, got.Services, 5, "no proxy serves a headless service")
	for _, s := range got.Services {
		_, err := model.NewService(*s.Service)
		assert.NoError(t, err)
		assert.NotEmpty(t, s.Endpoints)
	}
}

func TestAnEmptyClusterIsAState(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"state", "--file", t.TempDir(), "-o", "json"}, &out,
		io.Discard))
	assert.JSONEq(t, `{"node": {"name": ""}, "services": []}`, out.String())
}

func TestExplain(t *testing.T) {
	for _, service := range []string{"kube-system/kube-dns", "shop/web", "shop/db"} {
		fakemodel.Golden(t, "testdata/"+strings.ReplaceAll(service, "/", "-")+".explain.txt",
			string(output(t, "explain", service)))
	}
	fakemodel.Golden(t, "testdata/kube-system-kube-dns.explain.json",
		string(output(t, "explain", "-o", "json", "kube-system/kube-dns")))
}

// What the proxy ignores of its configuration is no reason to fail, but may be why the answer surprises.
func TestWhatAConfigurationSaysInVainIsTold(t *testing.T) {
	proxy := configFile(t, "detectLocalMode: NodeCIDR\nnodePortAdresses: [primary]\n")
	var notes strings.Builder
	require.NoError(t, run(t.Context(), []string{"flow", "node -> shop/web", "--file", cluster, "--node", "node-1",
		"--proxy", proxy}, io.Discard, &notes))
	assert.Contains(t, notes.String(), "Note: --proxy: ")
	assert.Contains(t, notes.String(), "nodePortAdresses")
}

func TestFlow(t *testing.T) {
	proxy := configFile(t, "detectLocalMode: NodeCIDR\n")
	ask := func(flow string, more ...string) string {
		return string(output(t, "flow", append(more, flow)...))
	}
	fakemodel.Golden(t, "testdata/flow-pod.txt", ask("pod shop/web-a -> 10.96.0.10:53/UDP", "--proxy", proxy))
	fakemodel.Golden(t, "testdata/flow-outside.txt", ask("outside 203.0.113.7 -> 192.168.0.11:30443", "--proxy", proxy))
	text := ask("pod shop/web-a -> 10.96.0.10:53/UDP", "--proxy", proxy, "-o", "json")
	fakemodel.Golden(t, "testdata/flow-pod.json", text)
	var answer oracle.Answer
	require.NoError(t, json.Unmarshal([]byte(text), &answer))
	assert.Equal(t, "S3", answer.Outcome.Reasons[0].Rule)

	// Names stand for addresses.
	for _, same := range []string{"pod shop/web-a -> kube-system/kube-dns:53/UDP",
		" pod  shop/web-a->kube-system/kube-dns:dns "} {
		assert.Equal(t, text, ask(same, "--proxy", proxy, "-o", "json"), same)
	}
	assert.Equal(t, text, ask("pod web-a -> kube-system/kube-dns:dns", "-n", "shop", "--proxy", proxy, "-o", "json"))
	assert.Equal(t, text, ask("pod shop/web-a -> kube-dns:dns", "-n", "kube-system", "--proxy", proxy, "-o", "json"))
	assert.Contains(t, ask("node -> shop/web"), "-> 10.96.10.1:443/TCP", "it has one port")
	assert.Contains(t, ask("node fd00:1::11 -> shop/web:443"), "-> [fd00:96::101]:443/TCP", "of the family of the source")
	assert.Contains(t, ask("node -> shop/web:80"), "reject", "it need not be a port of the Service")

	// The proxy's configuration is used.
	assert.Contains(t, ask("node -> 192.168.0.11:30443", "--proxy", "--nodeport-addresses=10.0.0.0/8"), "not ours")
	const question = "outside 203.0.113.7 -> 10.96.0.10:53/UDP"
	assert.Contains(t, ask(question), "never masqueraded")
	for _, flags := range []string{"--cluster-cidr=10.1.0.0/16", "--detect-local-mode=BridgeInterface " +
		"--pod-bridge-interface=cni0", "--detect-local-mode=InterfaceNamePrefix --pod-interface-name-prefix=veth"} {
		assert.Contains(t, ask(question, "--proxy", flags), "(S30)", flags)
	}
}

// configFile writes a configuration of kube-proxy.
func configFile(t *testing.T, text string) string {
	file := filepath.Join(t.TempDir(), "proxy.yaml")
	text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n" + text
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

func TestNodePortAddressesDefaultToThoseOfTheMode(t *testing.T) {
	everywhere := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	for proxy, want := range map[string]oracle.Config{
		"":         {},
		"ipvs":     {},
		"nftables": {NodePortPrimary: true},
		"--proxy-mode=nftables --nodeport-addresses=all": {NodePortCIDRs: everywhere},
		"--proxy-mode=iptables --nodeport-addresses=10.0.0.0/8,primary": {NodePortPrimary: true,
			NodePortCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
	} {
		_, got, err := (&program{proxy: proxy}).readProxy(t.Context())
		require.NoError(t, err)
		assert.Equal(t, want, got, proxy)
	}
}

// TestItGoesOnPrinting: with --watch the state is printed again when it has changed.
func TestItGoesOnPrinting(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+".tmp"), []byte(text), 0o644))
		require.NoError(t, os.Rename(filepath.Join(dir, name+".tmp"), filepath.Join(dir, name)))
	}
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"state", "--file", dir, "--node", "n", "--watch", "-o", "json"}, w, io.Discard)
		w.Close()
	}()
	states := json.NewDecoder(r)
	var got state
	require.NoError(t, states.Decode(&got))
	assert.Empty(t, got.Services)
	write("a.yaml", "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: 10.96.0.1, ports: "+
		"[{port: 80}]}}")
	require.NoError(t, states.Decode(&got))
	require.Len(t, got.Services, 1)
	assert.Equal(t, "default/a", got.Services[0].Service.Name.String())
	cancel()
	assert.NoError(t, <-ended)
}

// Each error says what to do next.
func TestWrongFlagsAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"another command":   {[]string{"status"}, `unknown command "status": see kubectl serviceproxy --help`},
		"an unknown flag":   {[]string{"state", "--fiel", cluster}, "--fiel: see kubectl serviceproxy state --help"},
		"nobody at the URL": {[]string{"explain", "a/b", "--url", "http://127.0.0.1:1"}, "was it started with --page?"},
		"a format": {[]string{"state", "--file", cluster, "-o", "xml"},
			`"xml" is not one of text, json, yaml and jsonpath=TEMPLATE`},
		"a template":  {[]string{"state", "--file", cluster, "-o", "jsonpath={"}, "unclosed action"},
		"half a name": {[]string{"explain", "shop/", "--file", cluster}, `"shop/" is not the name of a Service, as`},
		"nothing to explain": {[]string{"explain", "--file", cluster},
			"the name of a Service is missing: see kubectl serviceproxy explain --help"},
		"an unknown service": {[]string{"explain", "shop/none", "--file", cluster},
			"unknown Service shop/none: check the name against kubectl get services -n shop"},
		"an argument": {[]string{"state", "--file", cluster, "now"},
			`unknown command "now" for "kubectl serviceproxy state"`},
		"two arguments": {[]string{"flow", "x", "--file", cluster, "now"}, `unexpected argument "now"`},
		"a flow":        {[]string{"flow", "x", "--file", cluster}, "is not a packet, 'SOURCE -> DESTINATION': see"},
		"a source": {[]string{"flow", "x -> 10.96.0.10:53", "--file", cluster},
			`source "x" is not one of pod, local pod, remote pod, node, outside: see kubectl serviceproxy flow --help`},
		"no flow": {[]string{"flow", "--file", cluster}, "the packet, 'SOURCE -> DESTINATION', is missing"},
		"no port": {[]string{"flow", "node -> 10.96.0.10", "--file", cluster}, "has no port: give ADDRESS:PORT"},
		"which port": {[]string{"flow", "node -> kube-system/kube-dns", "--file", cluster},
			"It has dns 53/UDP, dns-tcp 53/TCP"},
		"a family": {[]string{"flow", "outside ::1 -> kube-system/kube-dns:dns", "--file", cluster},
			"no cluster IP in the IP family"},
		"a service":   {[]string{"flow", "node -> shop/none:80", "--file", cluster}, "unknown Service shop/none: check"},
		"state's URL": {[]string{"state", "--url", "http://127.0.0.1:1"}, "unknown flag: --url: see"},
		"a URL and a file": {[]string{"flow", "x", "--url", "http://127.0.0.1:1", "--file", cluster},
			"only one of --file, --brain and --url"},
		"a detector": {[]string{"flow", "node -> 10.96.0.10:53", "--file", cluster, "--proxy", "--detect-local-mode=Magic"},
			`--proxy: `},
		"a proxy of the cluster, and a file": {[]string{"state", "--file", cluster, "--proxy", "daemonset"},
			"--proxy: daemonset is read from a cluster: leave out --file, or name a file of its configuration"},
		"nothing at the path": {[]string{"state", "--file", "nowhere"}, "nowhere"},
		"an account":          {[]string{"rbac", "--serviceaccount", "x"}, `--serviceaccount "x" is not NAMESPACE:NAME`},
	} {
		t.Run(name, func(t *testing.T) {
			assert.ErrorContains(t, run(t.Context(), tc.args, io.Discard, io.Discard), tc.want)
		})
	}
}

// The output of --help fits on a screen and begins with examples, whose commands and flags exist.
func TestHelpFitsOnAScreen(t *testing.T) {
	for _, command := range []string{"", "explain", "flow", "state", "preflight", "rbac"} {
		var out strings.Builder
		require.NoError(t, run(t.Context(), append(strings.Fields(command), "--help"), &out, io.Discard))
		lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
		assert.LessOrEqual(t, len(lines), 25, command)
		for _, line := range lines {
			assert.LessOrEqual(t, len(line), 120, line)
		}
		assert.Equal(t, "Examples:", lines[2], command)
		examples := regexp.MustCompile(`(?m)^  kubectl serviceproxy ([a-z]+)(.*)$`).FindAllStringSubmatch(out.String(), -1)
		require.NotEmpty(t, examples, command)
		for _, example := range examples {
			cmd, _, err := (&program{}).command().Find(example[1:2])
			require.NoError(t, err)
			words, _, _ := strings.Cut(example[2], "|")
			for _, flag := range regexp.MustCompile(` --?([a-z-]+)`).FindAllStringSubmatch(words, -1) {
				found := cmd.Flags().Lookup(flag[1])
				if len(flag[1]) == 1 {
					found = cmd.Flags().ShorthandLookup(flag[1])
				}
				assert.NotNil(t, found, example[0])
			}
		}
	}
	var out strings.Builder
	require.NoError(t, run(t.Context(), []string{"options"}, &out, io.Discard))
	for _, flag := range []string{"--context", "--kubeconfig", "-n, --namespace", "-s, --server", "--as",
		"--tls-cert-file", "--rev"} {
		assert.Contains(t, out.String(), flag+" ")
	}
	out.Reset()
	require.NoError(t, run(t.Context(), []string{"--version"}, &out, io.Discard))
	assert.Regexp(t, `^kubectl serviceproxy version [^ ]+\n$`, out.String())
	out.Reset()
	require.NoError(t, run(t.Context(), nil, &out, io.Discard))
	assert.Contains(t, out.String(), "Commands:")
	out.Reset()
	require.Error(t, run(t.Context(), []string{"state", "--nonsense"}, &out, &out))
	assert.Empty(t, out.String(), "a wrong flag does not print all of this")
}

func TestJSONPathSelects(t *testing.T) {
	assert.Equal(t, "10.96.0.1 10.96.0.10 10.96.30.1 10.96.20.1 10.96.10.1 fd00:96::101\n",
		string(output(t, "state", "-o", "jsonpath={.services[*].service.clusterIPs[*]}")))
}

// brokenPipe fails like a terminal that was closed.
type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestOutputThatFailsIsReported(t *testing.T) {
	assert.ErrorIs(t, run(t.Context(), []string{"state", "--file", cluster}, brokenPipe{}, io.Discard),
		io.ErrClosedPipe)
}

// A wrong name would give plausible answers: those of a node without addresses, zone and pods.
func TestANodeThatDoesNotExistIsAnError(t *testing.T) {
	for _, args := range [][]string{{"state"}, {"explain", "shop/web"}, {"flow", "node -> 10.96.0.10:53/UDP"}} {
		var out bytes.Buffer
		err := run(t.Context(), append(args, "--file", cluster, "--node", "nod-1"), &out, io.Discard)
		assert.EqualError(t, err, `there is no Node "nod-1": check --node against kubectl get nodes`)
		assert.Empty(t, out.String())
	}
}

// Without the proxy's configuration it is unknown what it masquerades.
func TestWhatIsUnknownIsSaid(t *testing.T) {
	for proxy, told := range map[string]bool{"": true, "--cluster-cidr=10.1.0.0/16": false} {
		for _, args := range [][]string{{"state"}, {"explain", "shop/web"}, {"flow", "node -> shop/web"}} {
			var notes bytes.Buffer
			args = append(args, "--file", cluster, "--node", "node-1", "--proxy", proxy)
			require.NoError(t, run(t.Context(), args, io.Discard, &notes))
			assert.Equal(t, told, strings.Contains(notes.String(), "unknown which clients are pods of the node"), args)
		}
	}
}
