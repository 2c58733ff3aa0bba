package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testleak"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-proxy-lib/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
	"sigs.k8s.io/kube-proxy-lib/remote/brain"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

func TestMain(m *testing.M) { testleak.Main(m) }

const cluster = "../mock/cluster"

// output runs the program on the mock example's cluster.
func output(t *testing.T, args ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), append([]string{"--file", cluster, "--node-name", "node-1"}, args...), &out,
		io.Discard))
	return out.Bytes()
}

func TestText(t *testing.T) {
	fakemodel.Golden(t, "testdata/state.txt", string(output(t, "--once")))
}
func TestJSON(t *testing.T) {
	fakemodel.Golden(t, "testdata/state.json", string(output(t, "--once", "-o", "json")))
}
func TestYAML(t *testing.T) {
	fakemodel.Golden(t, "testdata/state.yaml", string(output(t, "--once", "-o", "yaml")))
}

func TestYAMLSaysTheSameAsJSON(t *testing.T) {
	converted, err := yaml.YAMLToJSON(output(t, "--once", "-o", "yaml"))
	require.NoError(t, err)
	assert.JSONEq(t, string(output(t, "--once", "-o", "json")), string(converted))
}

func TestJSONCanBeReadBackIntoTheModel(t *testing.T) {
	var got struct {
		Node     *model.Node
		Services []struct {
			Service   *model.Service
			Endpoints []*model.Endpoint
		}
	}
	d := json.NewDecoder(bytes.NewReader(output(t, "--once", "-o", "json")))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&got))
	assert.Equal(t, "zone-a", got.Node.Zone)
	require.Len(t, got.Services, 5, "the headless service is none of a proxy's")
	for _, s := range got.Services {
		_, err := model.NewService(*s.Service)
		assert.NoError(t, err)
		assert.NotEmpty(t, s.Endpoints)
	}
}

func TestAnEmptyClusterIsAState(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"--file", t.TempDir(), "--once", "-o", "json"}, &out, io.Discard))
	assert.JSONEq(t, `{"node": {"name": ""}, "services": []}`, out.String())
}

func TestExplain(t *testing.T) {
	for _, service := range []string{"kube-system/kube-dns", "shop/web", "shop/db"} {
		fakemodel.Golden(t, "testdata/"+strings.ReplaceAll(service, "/", "-")+".explain.txt",
			string(output(t, "--explain", service)))
	}
	fakemodel.Golden(t, "testdata/kube-system-kube-dns.explain.json",
		string(output(t, "--explain", "kube-system/kube-dns", "-o", "json")))
}

func TestFlow(t *testing.T) {
	args := []string{"--detect-local-mode", "NodeCIDR"}
	ask := func(flow string, more ...string) string {
		return string(output(t, slices.Concat(args, []string{"--flow", flow}, more)...))
	}
	fakemodel.Golden(t, "testdata/flow-pod.txt", ask("pod shop/web-a -> 10.96.0.10:53/UDP"))
	fakemodel.Golden(t, "testdata/flow-outside.txt", ask("outside 203.0.113.7 -> 192.168.0.11:30443"))
	text := ask("pod shop/web-a -> 10.96.0.10:53/UDP", "-o", "json")
	fakemodel.Golden(t, "testdata/flow-pod.json", text)
	var answer oracle.Answer
	require.NoError(t, json.Unmarshal([]byte(text), &answer))
	assert.Equal(t, "S3", answer.Outcome.Reasons[0].Rule)

	// The flags for the proxy's configuration are used.
	assert.Contains(t, ask("node -> 192.168.0.11:30443", "--nodeport-addresses", "10.0.0.0/8"), "not ours")
	args = nil
	const question = "outside 203.0.113.7 -> 10.96.0.10:53/UDP"
	assert.Contains(t, ask(question), "never masqueraded")
	assert.Contains(t, ask(question, "--cluster-cidr", "10.1.0.0/16"), "does not pass for a local pod (S30)")
	assert.Contains(t, ask(question, "--detect-local-mode", "BridgeInterface", "--pod-bridge-interface", "cni0"),
		"(S30)")
	assert.Contains(t, ask(question, "--detect-local-mode", "InterfaceNamePrefix", "--pod-interface-name-prefix",
		"veth"), "(S30)")
}

func TestNodePortAddressesDefaultToThoseOfTheMode(t *testing.T) {
	everywhere := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	for _, test := range []struct {
		mode, list string
		primary    bool
		cidrs      []netip.Prefix
	}{
		{"", "", false, nil},
		{"ipvs", "", false, nil},
		{"nftables", "", true, nil},
		{"nftables", "all", false, everywhere},
		{"iptables", "010.0.0.0/8, primary", true, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
	} {
		f := flowFlags{proxy: v1alpha2.KubeProxyConfiguration{Mode: v1alpha2.ProxyMode(test.mode)}, nodePorts: test.list}
		require.NoError(t, f.parse())
		assert.Equal(t, test.primary, f.config.NodePortPrimary, "%+v", test)
		assert.Equal(t, test.cidrs, f.config.NodePortCIDRs, "%+v", test)
	}
	f := flowFlags{proxy: v1alpha2.KubeProxyConfiguration{Mode: "nftable"}}
	require.ErrorContains(t, f.parse(), `--proxy-mode "nftable" is not one of`)
}

// A running proxy is asked through its page. Its error messages are passed on.
func TestFlowOfARunningProxy(t *testing.T) {
	const question = "outside 203.0.113.7 -> 10.96.0.10:53/UDP"
	want := string(output(t, "--flow", question, "-o", "json"))
	var asked string
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.Path + " " + r.FormValue("q")
		if r.FormValue("q") != question {
			http.Error(w, "flow: there is none", http.StatusBadRequest)
			return
		}
		_, _ = io.WriteString(w, want)
	}))
	defer proxy.Close()
	defer http.DefaultClient.CloseIdleConnections()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"--url", proxy.URL + "/page/", "--flow", question, "-o", "json"}, &out,
		io.Discard))
	assert.Equal(t, want, out.String())
	assert.Equal(t, "/page/api/flow "+question, asked)
	err := run(t.Context(), []string{"--url", proxy.URL, "--flow", "x"}, &out, io.Discard)
	assert.ErrorContains(t, err, "400 Bad Request: flow: there is none")
}

// TestItGoesOnPrinting: without --once the state is printed again when it has changed, and --once is not needed to end.
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
		ended <- run(ctx, []string{"--file", dir, "--node-name", "n", "-o", "json"}, w, io.Discard)
		w.Close()
	}()
	states := json.NewDecoder(r)
	var got state
	require.NoError(t, states.Decode(&got))
	assert.Empty(t, got.Services)
	write("a.yaml", "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}}")
	require.NoError(t, states.Decode(&got))
	require.Len(t, got.Services, 1)
	assert.Equal(t, "default/a", got.Services[0].Service.Name.String())
	cancel()
	assert.NoError(t, <-ended)
}

func TestWrongFlagsAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no source":          {nil, "one of --file, --kubeconfig, --server and --url is required; see print-state --help"},
		"an unknown flag":    {[]string{"--fiel", cluster}, "-fiel; see print-state --help"},
		"nobody at the URL":  {[]string{"--url", "http://127.0.0.1:1", "--explain", "a/b"}, "was it started with --page?"},
		"a format":           {[]string{"--file", cluster, "-o", "xml"}, `"xml" is not one of text, json, yaml`},
		"a name to explain":  {[]string{"--file", cluster, "--explain", "web"}, `"web" is not namespace/name`},
		"an unknown service": {[]string{"--file", cluster, "--explain", "shop/none"}, "unknown service shop/none"},
		"an argument":        {[]string{"--file", cluster, "now"}, `unexpected argument "now"`},
		"a flow":             {[]string{"--file", cluster, "--flow", "x"}, `--flow: flow "x" is not of the form`},
		"a URL without flow": {[]string{"--url", "http://127.0.0.1:1"}, "--url is for --flow"},
		"a URL and a file": {[]string{"--url", "http://127.0.0.1:1", "--flow", "x", "--file", cluster},
			"--url cannot be used with"},
		"flow and explain": {[]string{"--file", cluster, "--flow", "x", "--explain", "a/b"},
			"--flow cannot be used with --explain"},
		"a detector": {[]string{"--file", cluster, "--flow", "x", "--detect-local-mode", "Magic"},
			`"Magic" is not one of`},
		"a bridge's name": {[]string{"--file", cluster, "--flow", "x", "--detect-local-mode", "BridgeInterface"},
			"needs the name"},
		"a cluster CIDR": {[]string{"--file", cluster, "--flow", "x", "--cluster-cidr", "ten"}, "--cluster-cidr"},
		"node-port addresses": {[]string{"--file", cluster, "--flow", "x", "--nodeport-addresses", "ten"},
			`"ten" is not a CIDR, "primary"`},
		"nothing at the path": {[]string{"--file", "nowhere", "--once"}, "nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.ErrorContains(t, run(t.Context(), tc.args, io.Discard, io.Discard), tc.want)
		})
	}
}

// The flags of the examples exist, and a wrong one does not print all of this.
func TestHelp(t *testing.T) {
	var out, notes strings.Builder
	require.ErrorIs(t, run(t.Context(), []string{"--help"}, &out, &notes), flag.ErrHelp)
	text, flags, _ := strings.Cut(out.String(), "\nFlags:\n")
	var given []string
	for _, m := range regexp.MustCompile(`--([a-z-]+)`).FindAllStringSubmatch(text, -1) {
		if m[1] != "page" { // the proxy's
			given = append(given, m[1])
			assert.Regexp(t, `(?m)^  -`+m[1]+`( |$)`, flags)
		}
	}
	assert.Contains(t, given, "explain")
	out.Reset()
	require.Error(t, run(t.Context(), []string{"--nonsense"}, &out, &notes))
	assert.Empty(t, out.String()+notes.String())
}

// brokenPipe fails like a terminal that was closed.
type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestOutputThatFailsIsReported(t *testing.T) {
	assert.ErrorIs(t, run(t.Context(), []string{"--file", cluster, "--once"}, brokenPipe{}, io.Discard),
		io.ErrClosedPipe)
}

// The state from a brain is the same as from the cluster, and a second call shows what has changed since the first.
func TestWithABrain(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(cluster)))
	source, err := watch.NewFiles(dir)
	require.NoError(t, err)
	server, err := brain.New(ctx, brain.Options{Source: source})
	require.NoError(t, err)
	target := "unix://" + filepath.Join(t.TempDir(), "brain.sock")
	listener, err := brain.Listen(ctx, target, 0)
	require.NoError(t, err)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { assert.NoError(t, server.Run(ctx)) })
	wg.Go(func() { assert.NoError(t, server.Serve(ctx, listener, brain.ServeOptions{})) })

	look := func(more ...string) (out, notes string) {
		var printed, said strings.Builder
		args := append([]string{"--server", target, "--node-name", "node-1", "--once"}, more...)
		require.NoError(t, run(t.Context(), args, &printed, &said))
		return printed.String(), said.String()
	}
	out, notes := look()
	assert.Equal(t, string(output(t, "--once")), out)
	_, flags, ok := strings.Cut(strings.TrimSpace(notes), "to see later changes: ")
	require.True(t, ok, notes)
	const question = "pod 10.1.1.21 -> 10.96.0.10:53/UDP"
	answer, _ := look("--flow", question)
	want := strings.Replace(string(output(t, "--flow", question)), "pod kube-system/coredns-a on node", "on node", 1)
	assert.Equal(t, want, answer, "this brain does not tell the names of pods")
	node, _, _ := strings.Cut(out, "\n")
	out, again := look(strings.Fields(flags)...)
	assert.Equal(t, node+"\n", out, "no service has changed")
	assert.Equal(t, notes, again)
}

func TestWrongFlagsOfABrainAreRefused(t *testing.T) {
	for want, args := range map[string][]string{
		"--server cannot be used with":             {"--file", cluster},
		"--instance-id and --rev":                  {"--rev", "7"},
		"neither TLS nor Insecure is set":          {"--server", "127.0.0.1:1"},
		"must be given together":                   {"--tls-cert-file", "nowhere"},
		"cannot be used with --file, --kubeconfig": {"--explain", "shop/web"},
	} {
		args = append([]string{"--server", "unix:///nowhere"}, args...)
		assert.ErrorContains(t, run(t.Context(), args, io.Discard, io.Discard), want)
	}
}

func TestNobodyWaitsForeverForTheState(t *testing.T) {
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer silent.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, []byte(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"contexts": [{"name": "c", "context": {"cluster": "c"}}],
		"clusters": [{"name": "c", "cluster": {"server": "`+silent.URL+`"}}]}`), 0o600))
	flow := "pod 10.1.1.5 -> 10.96.0.10:53/UDP"
	for _, args := range [][]string{{"--once"}, {"--explain", "default/web"}, {"--flow", flow}} {
		err := run(t.Context(), append([]string{"--kubeconfig", kubeconfig, "--node-name", "node-1", "--timeout", "1ms"},
			args...), io.Discard, io.Discard)
		require.EqualError(t, err, "no state after 1ms: check that the API server, the brain or the file exists")
	}
}

// A wrong name would give plausible answers: those of a node without addresses, zone and pods.
func TestANodeThatDoesNotExistIsAnError(t *testing.T) {
	for _, args := range [][]string{{"--once"}, {"--explain", "shop/web"}, {"--flow", "node -> 10.96.0.10:53/UDP"}} {
		var out bytes.Buffer
		err := run(t.Context(), append([]string{"--file", cluster, "--node-name", "nod-1"}, args...), &out, io.Discard)
		assert.EqualError(t, err, "there is no Node of this name: check --node-name against kubectl get nodes")
		assert.Empty(t, out.String())
	}
}

// Without the flags that say how the proxy tells local pods nobody knows what it masquerades.
func TestWhatIsUnknownIsSaid(t *testing.T) {
	for args, told := range map[string]bool{"--once": true, "--once --cluster-cidr 10.1.0.0/16": false,
		"--once --detect-local-mode NodeCIDR": false} {
		var notes bytes.Buffer
		require.NoError(t, run(t.Context(), append([]string{"--file", cluster, "--node-name", "node-1"},
			strings.Fields(args)...), io.Discard, &notes))
		assert.Equal(t, told, strings.Contains(notes.String(), "unknown which clients are pods of the node"), args)
	}
}

// A running proxy explains a service as print-state itself does. One that does not answer is not waited for forever.
func TestExplainOfARunningProxy(t *testing.T) {
	stuck := make(chan struct{})
	want := output(t, "--explain", "shop/web", "-o", "json")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RequestURI() != "/page/api/explain?name=web&namespace=shop" {
			<-stuck
			return
		}
		_, _ = w.Write(want)
	}))
	defer server.Close()
	defer close(stuck)
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"--url", server.URL + "/page/", "--explain", "shop/web", "-o", "json"}, &out,
		io.Discard))
	assert.Equal(t, string(want), out.String())
	err := run(t.Context(), []string{"--url", server.URL + "/page/", "--explain", "no/body", "--timeout", "1ms"}, &out,
		io.Discard)
	assert.ErrorContains(t, err, "no answer: a larger --timeout")
	assert.EqualError(t, run(t.Context(), []string{"--url", server.URL}, &out, io.Discard),
		"--url is for --flow and --explain")
}
