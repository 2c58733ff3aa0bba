package nft_test

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// rig is a backend on a fake, with the driver that feeds it.
type rig struct {
	*fakemodel.Driver
	t       testing.TB
	fake    *dataplane.Fake // nil on the kernel
	options nft.Options
	backend *nft.Backend
	applied []*dataplane.Transaction // by the last Sync
	fail    func() error
	// repairs: the backend repairs in the background; or else only in Sync, which is easier to follow.
	repairs bool
}

func newRig(t testing.TB, o nft.Options) *rig { return newRigThat(t, o, false) }

func newRigThat(t testing.TB, o nft.Options, repairs bool) *rig {
	r := &rig{t: t, options: o, repairs: repairs}
	if o.NodePortAddresses.All(model.IPv4) && o.NodePortAddresses.All(model.IPv6) {
		r.options.NodePortAddresses.Primary = true // as kube-proxy has it
	}
	r.reset()
	return r.start()
}

// newKernelRig is a rig on the kernel, in the namespace of the test.
func newKernelRig(t testing.TB, o nft.Options, repairs bool) *rig {
	return (&rig{t: t, options: o, repairs: repairs}).start()
}

// reset takes the tables away, for the backend of the next Restart.
func (r *rig) reset() {
	r.fake = dataplane.NewFake()
	r.options.Dataplane = r.fake
	r.fake.FailApply = func(tx *dataplane.Transaction) error {
		if r.fail != nil {
			if err := r.fail(); err != nil {
				return err
			}
		}
		r.applied = append(r.applied, tx)
		return nil
	}
}

func (r *rig) start() *rig {
	r.Driver = fakemodel.NewDriver(r.t, fakemodel.Options{NewSink: r.newBackend, EverySync: true})
	r.t.Cleanup(func() { r.backend.Close() })
	return r
}

// newBackend is a new process, on the tables as they are.
func (r *rig) newBackend() sink.Sink {
	if r.backend != nil {
		require.NoError(r.t, r.backend.Close())
	}
	ctx, cancel := context.WithCancel(r.t.Context())
	r.t.Cleanup(cancel)
	backend, err := nft.New(ctx, r.options)
	require.NoError(r.t, err)
	if r.backend = backend; !r.repairs {
		cancel()
	}
	return backend
}

func (r *rig) TrySync() error {
	r.t.Helper()
	r.applied = nil
	return r.Driver.TrySync()
}

func (r *rig) Sync() {
	r.t.Helper()
	r.applied = nil
	r.Driver.Sync()
}

// commands returns what the last Sync did in one family, as commands.
func (r *rig) commands(f model.Family) []string {
	var lines []string
	for _, tx := range r.applied {
		if tx.Table.Family == f {
			lines = append(lines, strings.TrimSuffix(tx.Text(), "\n"), "commit")
		}
	}
	return strings.Split(strings.Join(lines, "\n"), "\n")
}

func (r *rig) dump(f model.Family) string {
	return r.fake.Dump(dataplane.TableKey{Family: f, Name: nft.DefaultTableName})
}

func (r *rig) dumps() string { return r.dump(model.IPv4) + r.dump(model.IPv6) }

// canonical returns a table's meaning: without the chains that nothing points at, and with slots as a sorted list,
// which must be complete, in maps whose names and sizes say nothing. So tables that came about in different ways can be
// compared.
func canonical(t testing.TB, dump string) string {
	t.Helper()
	chains := map[string]string{}
	var sets []string
	object := regexp.MustCompile(`(?ms)^\t(map|set|chain) (\S+) \{\n(.*?)^\t\}`)
	for _, m := range object.FindAllStringSubmatch(dump, -1) {
		kind, name, body := m[1], m[2], m[3]
		body = slotMap.ReplaceAllString(body, "$1")
		if kind == "chain" {
			chains[name] = body
			continue
		}
		if name = slotMap.ReplaceAllString(name, "$1"); strings.Contains(name, "endpoints") {
			body = sizeOf.ReplaceAllString(body, "")
			body = canonicalSlots(t, name, body)
		}
		sets = append(sets, kind+" "+name+"\n"+body)
	}
	reached := map[string]bool{}
	var reach func(text string)
	reach = func(text string) {
		for _, m := range regexp.MustCompile(`(?:goto|jump) (\S+?)[,\s]`).FindAllStringSubmatch(text, -1) {
			if !reached[m[1]] {
				reached[m[1]] = true
				reach(chains[m[1]])
			}
		}
	}
	for _, s := range sets {
		reach(s)
	}
	for name, body := range chains {
		if strings.Contains(body, " hook ") || strings.HasPrefix(name, "affinity-") ||
			strings.HasPrefix(name, "port-") {
			reached[name] = true
			reach(body)
		}
	}
	for name := range reached {
		sets = append(sets, "chain "+name+"\n"+chains[name])
	}
	slices.Sort(sets)
	return strings.Join(sets, "\n")
}

var (
	slotMap = regexp.MustCompile(`(endpoints)-\d+`)
	sizeOf  = regexp.MustCompile(`(?m)^\t\tsize \d+\n`)
)

var slotPattern = regexp.MustCompile(`((?:\S+ \. )+)(\d+) : (\S+ \. \d+)`)

func canonicalSlots(t testing.TB, name, body string) string {
	slots := map[string][]string{}
	numbers := map[string][]string{}
	for _, m := range slotPattern.FindAllStringSubmatch(body, -1) {
		slots[m[1]] = append(slots[m[1]], m[3])
		numbers[m[1]] = append(numbers[m[1]], m[2])
	}
	var lines []string
	for key, targets := range slots {
		slices.Sort(targets)
		slices.SortFunc(numbers[key], func(a, b string) int {
			return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
		})
		for i, n := range numbers[key] {
			require.Equal(t, fmt.Sprint(i), n, "slots of %s in %s", key, name)
		}
		lines = append(lines, key+strings.Join(targets, ", "))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
