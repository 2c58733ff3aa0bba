package kubeproxy_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

const module = "sigs.k8s.io/kube-proxy-lib"

// listed is what `go list` says of a package.
type listed struct {
	ImportPath, Dir string
	Standard        bool
	GoFiles         []string
	Imports, Deps   []string
	Module          *struct{ Path, Dir string }
}

// lists caches list's result for each operating system: it takes seconds, and several tests need it.
var lists sync.Map

// list returns the packages of the module, as they are built for an operating system. Do not change them.
func list(t *testing.T, goos string) map[string]listed {
	once, _ := lists.LoadOrStore(goos, sync.OnceValues(func() (map[string]listed, error) { return runList(goos) }))
	packages, err := once.(func() (map[string]listed, error))()
	require.NoError(t, err)
	return packages
}

func runList(goos string) (map[string]listed, error) {
	testkit.Uncached()
	cmd := exec.Command("go", "list", "-deps",
		"-json=ImportPath,Dir,Standard,GoFiles,Imports,Deps,Module", "./...")
	cmd.Env = append(os.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	packages := map[string]listed{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		switch err := d.Decode(&p); {
		case errors.Is(err, io.EOF):
			return packages, nil
		case err != nil:
			return nil, err
		}
		packages[p.ImportPath] = p
	}
}

// layers says what each layer may import directly, besides the standard library, as prefixes of import paths. A package
// belongs to the first layer whose folder it is in.
var layers = []struct {
	folder  string
	imports []string
}{
	{"cmd", []string{""}},
	{"examples", []string{""}},
	{"testing", []string{""}},
	{"internal/testkit", []string{""}},              // for tests only
	{"backends/internal/backendtest", []string{""}}, // for tests only
	{"internal/kernel/osthread", []string{"golang.org/x/sys/"}},
	{"internal/program/certificates", nil},
	{"internal/program/brainflags", []string{module + "/internal/program/certificates", module + "/remote"}},
	{"internal/prom", []string{"github.com/prometheus/client_golang/"}},
	{"internal/program/source", []string{module + "/watch", "k8s.io/client-go/"}},
	{"internal/program/buildinfo", nil},
	{"internal/kernel/calls", nil},
	{"internal/syncing", nil},
	{"internal/watchhealth", []string{"github.com/prometheus/client_golang/", "k8s.io/api/", "k8s.io/apimachinery/"}},
	{"model", nil},
	{"diffstore", nil},
	{"sink/oracle", []string{module + "/model", module + "/sink"}},
	{"sink", []string{module + "/model", module + "/internal/syncing",
		"github.com/tidwall/btree", "k8s.io/klog/v2"}},
	{"internal/refusals", []string{module + "/model", module + "/sink", module + "/internal/syncing"}},
	{"internal/lenient", []string{"k8s.io/utils/"}},
	{"localstate", []string{module + "/model", module + "/internal/lenient", "k8s.io/api/", "k8s.io/apimachinery/",
		"k8s.io/klog/v2"}},
	{"node/page", []string{module + "/model", module + "/sink", module + "/localstate", module + "/node/health",
		module + "/internal/semantics", module + "/internal/syncing", "github.com/tidwall/btree"}},
	{"internal/semantics", nil},
	{"internal/manifest", []string{"k8s.io/api/", "k8s.io/apimachinery/", "sigs.k8s.io/yaml", "sigs.k8s.io/json"}},
	{"watch", []string{module + "/internal/manifest", "k8s.io/", "github.com/fsnotify/fsnotify"}},
	{"internal/kernel/addrwatch", []string{"github.com/vishvananda/"}},
	{"internal/kernel/nfnetlink", []string{module + "/model", module + "/internal/kernel/osthread",
		"github.com/mdlayher/netlink", "golang.org/x/sys/"}},
	{"internal/kernel/nft", []string{module + "/model", module + "/internal/kernel/nfnetlink",
		module + "/internal/kernel/osthread", "github.com/google/nftables", "go4.org/netipx", "golang.org/x/sys/"}},
	{"internal/kernel/iptables", []string{module + "/model", module + "/internal/kernel/nfnetlink",
		module + "/internal/kernel/osthread", "golang.org/x/sys/", "github.com/vishvananda/netns", "k8s.io/klog/v2"}},
	{"internal/kernel/ipvs", []string{module + "/model", module + "/internal/kernel/calls",
		module + "/internal/kernel/osthread", module + "/internal/kernel/addrwatch", "golang.org/x/sys/",
		"github.com/moby/ipvs", "github.com/vishvananda/"}},
	{"internal/kernel/hns", []string{module + "/model", module + "/internal/kernel/calls", "golang.org/x/sys/",
		"github.com/Microsoft/hnslib/hcn"}},
	{"backends/internal/metrics", []string{module + "/model", module + "/internal/prom",
		"github.com/prometheus/client_golang/"}},
	// IPVS filters and masquerades by nftables.
	{"backends/ipvs", []string{module + "/model", module + "/sink", module + "/node/nodeaddr", module + "/node/sysctl",
		module + "/diffstore", module + "/backends/internal/", module + "/backends/frontend",
		module + "/internal/kernel/ipvs/", module + "/internal/kernel/nft/", "k8s.io/klog/v2",
		"github.com/prometheus/client_golang/"}},
	{"backends/hns", []string{module + "/model", module + "/sink", module + "/backends/internal/",
		module + "/backends/frontend", module + "/internal/kernel/hns/", "k8s.io/klog/v2",
		"github.com/prometheus/client_golang/"}},
	{"backends/userspace", []string{module + "/model", module + "/sink", module + "/node/nodeaddr",
		module + "/internal/refusals", module + "/backends/internal/", module + "/backends/frontend",
		"k8s.io/klog/v2", "golang.org/x/sys/", "github.com/prometheus/client_golang/"}},
	{"backends/frontend", []string{module + "/model", module + "/sink", module + "/backends/internal/",
		module + "/node/nodeaddr", module + "/node/sysctl", "k8s.io/klog/v2", "github.com/prometheus/client_golang/"}},
	{"backends", []string{module + "/model", module + "/sink", module + "/backends/internal/",
		module + "/backends/frontend",
		module + "/node/nodeaddr", module + "/node/hostaddr", module + "/node/sysctl", module + "/internal/kernel/nft/",
		module + "/internal/kernel/iptables/", module + "/internal/prom",
		"k8s.io/klog/v2", "github.com/prometheus/client_golang/"}},
	{"conntrack", []string{module + "/model", module + "/sink", module + "/node/nodeaddr",
		module + "/internal/kernel/nfnetlink", module + "/node/hostaddr", module + "/internal/prom",
		module + "/internal/syncing", module + "/internal/refusals", "k8s.io/klog/v2", "golang.org/x/sys/",
		"github.com/prometheus/client_golang/"}},
	{"dropin/config", []string{module, "k8s.io/kube-proxy/", "k8s.io/apimachinery/", "k8s.io/component-base/",
		"k8s.io/utils/", "sigs.k8s.io/yaml", "sigs.k8s.io/json"}},
	{"node/nodeaddr", []string{module + "/model", module + "/sink", module + "/internal/lenient", "k8s.io/klog/v2"}},
	{"node/hostaddr", []string{module + "/node/nodeaddr", module + "/internal/kernel/addrwatch",
		"github.com/vishvananda/", "golang.org/x/sys/"}},
	{"node/sysctl", []string{"k8s.io/klog/v2"}},
	{"remote/internal/persistent", nil},
	{"remote/internal/wire", []string{module + "/model", module + "/sink", module + "/localstate", module + "/remote/v1",
		"google.golang.org/grpc/", "google.golang.org/protobuf/"}},
	{"remote/v1", []string{"google.golang.org/grpc", "google.golang.org/protobuf/"}},
	{"remote/brain", []string{module + "/model", module + "/sink", module + "/localstate", module + "/watch",
		module + "/internal/prom", module + "/internal/watchhealth",
		module + "/remote/internal/persistent", module + "/remote/internal/wire",
		module + "/remote/v1", "k8s.io/api/", "k8s.io/apimachinery/", "k8s.io/klog/v2",
		"github.com/prometheus/client_golang/", "google.golang.org/grpc", "google.golang.org/protobuf/"}},
	{"remote", []string{module, "k8s.io/klog/v2", "google.golang.org/grpc", "google.golang.org/protobuf/"}},
	{"internal/healthcheck", []string{module + "/model"}},
	{"node/health", []string{module + "/model", module + "/sink", module + "/node/nodeaddr",
		module + "/internal/healthcheck", module + "/internal/refusals", "k8s.io/klog/v2",
		"github.com/prometheus/client_golang/"}},
	{"dropin/command", []string{module + "/dropin", module + "/internal/program/brainflags",
		module + "/internal/program/buildinfo",
		"k8s.io/", "github.com/spf13/pflag", "golang.org/x/sys/"}},
	// A whole program: all backends, all of the library.
	{"dropin", []string{module, "k8s.io/", "sigs.k8s.io/yaml", "github.com/prometheus/client_golang/",
		"github.com/vishvananda/", "golang.org/x/sys/"}},
	{"", []string{module + "/", "k8s.io/api/", "k8s.io/apimachinery/", "k8s.io/klog/v2",
		"github.com/prometheus/client_golang/"}},
}

// TestLayers enforces the import rules, so that each layer can be used on its own, and a backend cannot compute
// Kubernetes' semantics itself.
func TestLayers(t *testing.T) {
	type rule struct{ folder, prefix string }
	made := map[rule]bool{} // imports that exist
	for _, goos := range []string{"linux", "windows", "darwin"} {
		packages := list(t, goos)
		require.Contains(t, packages, module+"/model")
		for path, p := range packages {
			folder, ours := strings.CutPrefix(path+"/", module+"/")
			if !ours {
				continue
			}
			for _, layer := range layers {
				if layer.folder != "" && !strings.HasPrefix(folder, layer.folder+"/") {
					continue
				}
				for _, imported := range p.Imports {
					own := strings.HasPrefix(imported+"/", module+"/"+layer.folder+"/")
					allowed := packages[imported].Standard || imported == "C" || own && layer.folder != "backends" ||
						strings.HasPrefix(imported, path+"/")
					for _, prefix := range layer.imports {
						if !allowed && strings.HasPrefix(imported, prefix) {
							made[rule{layer.folder, prefix}], allowed = true, true
						}
					}
					assert.True(t, allowed, "%s: %s must not import %s", goos, path, imported)
				}
				break
			}
		}
	}
	for _, layer := range layers {
		for _, prefix := range layer.imports {
			ours := prefix == "" || strings.HasPrefix(prefix, module)
			assert.True(t, ours || made[rule{layer.folder, prefix}], "nothing in %q imports %q any more", layer.folder,
				prefix)
		}
	}
}

// TestTheSuiteHasOneDirection holds that a package of the conformance suite imports only those behind it in this list.
func TestTheSuiteHasOneDirection(t *testing.T) {
	order := []string{"", "/judge", "/internal/suite", "/internal/simple", "/internal/cases", "/internal/random",
		"/internal/testbed", "/internal/cluster", "/internal/backend", "/internal/speed", "/program", "/internal/evidence",
		"/internal/machine", "/internal/network", "/report", "/internal/mynft"}
	const suite = module + "/testing/conformance"
	found := 0
	for path, p := range list(t, "linux") {
		own, ours := strings.CutPrefix(path, suite)
		if !ours {
			continue
		}
		found++
		place := slices.Index(order, own)
		require.GreaterOrEqual(t, place, 0, "%s has no place in the list", path)
		for _, imported := range p.Imports {
			if below, ours := strings.CutPrefix(imported, suite); ours {
				assert.Greater(t, slices.Index(order, below), place, "%s imports %s", path, imported)
			}
		}
	}
	assert.Len(t, order, found)
}

// TestLightPackagesStayLight limits what model, diffstore and sink add to a backend in another project.
func TestLightPackagesStayLight(t *testing.T) {
	packages := list(t, "linux")
	for path, allowed := range map[string][]string{
		"/model":     nil,
		"/diffstore": nil,
		"/sink": {module + "/model", module + "/internal/syncing",
			"github.com/tidwall/btree", "k8s.io/klog/v2",
			"github.com/go-logr/logr"},
	} {
		for _, dep := range packages[module+path].Deps {
			if packages[dep].Standard {
				continue
			}
			assert.True(t, slices.ContainsFunc(allowed,
				func(prefix string) bool { return strings.HasPrefix(dep+"/", prefix+"/") }),
				"%s depends on %s", path, dep)
		}
	}
}

// TestFrontendLinksNoDataplane: a program with a dataplane of its own links no code that reads addresses or talks to a
// kernel.
func TestFrontendLinksNoDataplane(t *testing.T) {
	packages := list(t, "linux")
	require.Contains(t, packages[module+"/node/hostaddr"].Deps, "github.com/vishvananda/netlink")
	for _, path := range []string{module, module + "/sink", module + "/backends/frontend"} {
		for _, dep := range packages[path].Deps {
			for _, prefix := range []string{"github.com/vishvananda/", "github.com/mdlayher/", "github.com/google/nftables",
				"github.com/moby/ipvs", "github.com/Microsoft/", "google.golang.org/grpc"} {
				assert.False(t, strings.HasPrefix(dep, prefix), "%s links %s", path, dep)
			}
		}
	}
}

// TestOnlyTestsTest: a program that imports a backend does not link package testing, or our packages for tests. Of our
// own programs only the judge does.
func TestOnlyTestsTest(t *testing.T) {
	for path, p := range list(t, "linux") {
		folder, ours := strings.CutPrefix(path+"/", module+"/")
		if !ours {
			continue
		}
		for _, imported := range p.Imports {
			own, ours := strings.CutPrefix(imported+"/", module+"/")
			if !isForTests(folder) && !strings.HasPrefix(folder, "cmd/judge/") {
				assert.False(t, imported == "testing" || ours && isForTests(own), "%s imports %s", path, imported)
			}
		}
	}
}

// isProgram reports whether the package in a folder is a program, or a part of programs alone.
func isProgram(folder string) bool {
	return strings.HasPrefix(folder, "cmd/") || strings.HasPrefix(folder, "examples/") ||
		folder == "internal/program/source/"
}

// isForTests reports whether the package in a folder is for tests.
func isForTests(folder string) bool {
	return strings.HasPrefix(folder, "testing/") || folder == "internal/testkit/" ||
		folder == "backends/internal/backendtest/"
}

// TestOnlyRemoteLinksGRPC: a program that does not import remote links neither gRPC nor the packages that use it; and a
// node's program links no brain.
func TestOnlyRemoteLinksGRPC(t *testing.T) {
	const client, server = module + "/remote", module + "/remote/brain"
	for _, goos := range []string{"linux", "windows"} {
		packages := list(t, goos)
		for _, path := range []string{client, server} {
			require.Contains(t, packages[path].Deps, "google.golang.org/grpc")
		}
		for path, p := range packages {
			folder, ours := strings.CutPrefix(path+"/", module+"/")
			if !ours || strings.HasPrefix(folder, "remote/") || slices.Contains(p.Deps, client) ||
				slices.Contains(p.Deps, server) {
				continue
			}
			for _, dep := range p.Deps {
				assert.False(t, strings.HasPrefix(dep+"/", "google.golang.org/grpc/"), "%s: %s links %s", goos, path,
					dep)
			}
		}
		for _, light := range []string{"", "/watch", "/localstate", "/sink", "/node/health", "/dropin/config",
			"/backends/nft", "/backends/iptables"} {
			assert.NotContains(t, packages[module+light].Deps, client, light)
			assert.NotContains(t, packages[module+light].Deps, server, light)
		}
		for _, node := range []string{"/remote", "/dropin", "/cmd/kube-proxy", "/cmd/kubectl-serviceproxy"} {
			assert.NotContains(t, packages[module+node].Deps, server, node)
		}
		assert.NotContains(t, packages[server].Deps, client)
	}
}

// TestOnlyProgramsLinkTheDropIn: it links all backends, which an importer of anything else must not get.
func TestOnlyProgramsLinkTheDropIn(t *testing.T) {
	packages := list(t, "linux")
	const dropin = module + "/dropin"
	require.Contains(t, packages[module+"/cmd/kube-proxy"].Deps, dropin)
	for path, p := range packages {
		if folder, ours := strings.CutPrefix(path+"/", module+"/"); ours && !strings.HasPrefix(folder, "cmd/") &&
			!strings.HasPrefix(folder, "dropin/") {
			assert.NotContains(t, p.Deps, dropin, path)
		}
	}
}

// TestOnlyTheInformersInUseAreLinked: all of client-go's informers would be a quarter of what the mock compiles.
func TestOnlyTheInformersInUseAreLinked(t *testing.T) {
	packages := list(t, "linux")
	require.Contains(t, packages[module+"/examples/mock"].Deps, "k8s.io/client-go/informers/core/v1")
	for _, dep := range packages[module+"/examples/mock"].Deps {
		assert.False(t, dep == "k8s.io/client-go/informers" || strings.HasPrefix(dep, "k8s.io/client-go/informers/apps"),
			"the mock links %s", dep)
	}
}

// TestNothingRequiresKubernetesItself: k8s.io/kubernetes is not meant to be imported.
func TestNothingRequiresKubernetesItself(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "all").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), module)
	for line := range strings.Lines(string(out)) {
		assert.NotEqual(t, "k8s.io/kubernetes", strings.Fields(line)[0])
	}
}

// TestTheLibraryKeepsToItself: a library does not exit, read flags, install signal handlers, run init or hold globals;
// and of what is not for tests only dropin reads the environment.
func TestTheLibraryKeepsToItself(t *testing.T) {
	for _, goos := range []string{"linux", "windows"} {
		keepsToItself(t, list(t, goos))
	}
}

func keepsToItself(t *testing.T, packages map[string]listed) {
	readsEnvironment := map[string]bool{}
	for path, p := range packages {
		folder, ours := strings.CutPrefix(path+"/", module+"/")
		if !ours || isProgram(folder) || strings.HasPrefix(folder, "testing/") {
			continue
		}
		forbidden := []string{"os/signal", "log"}
		switch folder {
		case "dropin/command/", "internal/program/brainflags/", "internal/testkit/": // which are about flags, and for tests
		default:
			forbidden = append(forbidden, "flag", "github.com/spf13/pflag")
		}
		for _, imported := range p.Imports {
			assert.NotContains(t, forbidden, imported, path)
		}
		for _, name := range p.GoFiles {
			if strings.HasSuffix(name, ".pb.go") {
				continue // generated: protobuf has its types register themselves
			}
			file := filepath.Join(p.Dir, name)
			fset := token.NewFileSet()
			parsed, err := parser.ParseFile(fset, file, nil, parser.ParseComments)
			require.NoError(t, err)
			for _, decl := range parsed.Decls {
				switch d := decl.(type) {
				case *ast.FuncDecl:
					assert.False(t, d.Recv == nil && d.Name.Name == "init", "%s has an init function", file)
				case *ast.GenDecl:
					for _, spec := range d.Specs {
						if v, ok := spec.(*ast.ValueSpec); ok && d.Tok == token.VAR && !isEmbedded(d, v) {
							for i, n := range v.Names {
								assert.True(t, n.Name == "_" || i < len(v.Values) && isConstant(v.Values[i]),
									"%v: package variable %s", fset.Position(n.Pos()), n.Name)
							}
						}
					}
				}
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "os" {
					switch sel.Sel.Name {
					case "Exit":
						assert.Fail(t, "os.Exit", "%v", fset.Position(n.Pos()))
					case "Getenv", "LookupEnv", "Environ", "ExpandEnv":
						readsEnvironment[folder] = true
					}
				}
				return true
			})
		}
	}
	maps.DeleteFunc(readsEnvironment, func(folder string, _ bool) bool { return isForTests(folder) })
	assert.Equal(t, map[string]bool{"dropin/": true}, readsEnvironment, "SECURITY.md says what reads the environment")
}

// isEmbedded reports whether a variable holds embedded files, of a type that cannot be written to.
func isEmbedded(d *ast.GenDecl, v *ast.ValueSpec) bool {
	sel, ok := v.Type.(*ast.SelectorExpr)
	if !ok || d.Doc == nil || !strings.HasPrefix(d.Doc.List[len(d.Doc.List)-1].Text, "//go:embed ") {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == "embed" && sel.Sel.Name == "FS"
}

// isConstant reports whether an expression makes a value that never changes: a sentinel error or a regular
// expression.
func isConstant(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && (x.Name == "errors" && sel.Sel.Name == "New" || x.Name == "regexp" && sel.Sel.Name == "MustCompile")
}
