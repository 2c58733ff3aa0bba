package nft_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// stickyRig has the sets of clients of one family.
type stickyRig struct{ *rig }

func newStickyRig(t *testing.T) stickyRig {
	r := stickyRig{newRig(t, nft.Options{Common: frontend.Common{Families: []model.Family{model.IPv4}}})}
	r.Set(backendtest.Node())
	return r
}

// services sets sticky services of a namespace, each with two endpoints.
func (r stickyRig) services(namespace string, from, to int) {
	for i := from; i < to; i++ {
		name := fmt.Sprintf("%s/s%d", namespace, i)
		r.Set(fm.Service(name).ClusterIP(fmt.Sprintf("10.96.%d.%d", len(namespace), i)).Port("p", 80).
			Affinity(time.Hour).Build())
		for j := range 2 {
			r.Set(fm.Endpoint(name+":p/TCP", fmt.Sprintf("10.244.%d.%d:80", 2+j, i)).Build())
		}
	}
}

// sets returns the sets of clients, by their comments.
func (r stickyRig) sets() map[string]string {
	found := map[string]string{}
	pattern := regexp.MustCompile(`(?m)^\tset ((?:affinity|clients)-\S+) \{\n.*\n.*dynamic.*\n\t\tcomment "(.*)"`)
	for _, m := range pattern.FindAllStringSubmatch(r.dump(model.IPv4), -1) {
		found[m[2]] = m[1]
	}
	return found
}

// setOf returns the set that a service port uses.
func (r stickyRig) setOf(port string) string {
	chain := regexp.MustCompile(`(?s)comment "` + regexp.QuoteMeta(port) + `"\n[^}]*?update @(\S+) `)
	if m := chain.FindStringSubmatch(r.dump(model.IPv4)); m != nil {
		return m[1]
	}
	return ""
}

func TestSetsOfClientsAreFew(t *testing.T) {
	many := fm.Service("many/ports").ClusterIP("10.96.9.9").Affinity(time.Hour)
	for i := range 1000 {
		many.Port(fmt.Sprint("p", i), uint16(1+i))
	}
	r := newStickyRig(t)
	r.Set(many.Build())
	for i := range 1000 {
		r.Set(fm.Endpoint(fmt.Sprintf("many/ports:p%d/TCP", i), fmt.Sprintf("10.244.2.1:%d", 1+i)).Build())
	}
	r.services("other", 0, 1)
	r.Sync()
	assert.Len(t, r.sets(), 16+1+1)
	assert.Contains(t, r.sets(), "namespace many")
	assert.Contains(t, r.sets(), "other/s0:p/TCP")

	t.Run("a bystander's endpoint concerns its own chain", func(t *testing.T) {
		r.Delete(fm.Endpoint("other/s0:p/TCP", "10.244.2.0:80").Build())
		r.Set(fm.Endpoint("other/s0:p/TCP", "10.244.9.9:80").Build())
		r.Sync()
		for _, line := range r.commands(model.IPv4) {
			if strings.Contains(line, " rule ") {
				assert.Contains(t, line, "other/s0")
			}
		}
		assert.LessOrEqual(t, len(r.commands(model.IPv4)), 12)
	})
	t.Run("they go with their last ports", func(t *testing.T) {
		r.Delete(model.ServiceName{Namespace: "many", Name: "ports"})
		r.Sync()
		assert.Len(t, r.sets(), 1)
	})
}

func TestPortsInASharedSetOfClientsAreToldApartByANumber(t *testing.T) {
	r := newStickyRig(t)
	r.services("shop", 0, 20)
	r.Sync()
	shared := r.sets()["namespace shop"]
	require.NotEmpty(t, shared)
	seen := map[string]bool{}
	key := regexp.MustCompile(`update @` + shared + ` \{ ip saddr \. numgen random mod 1 offset (\d+) \. `)
	for _, m := range key.FindAllStringSubmatch(r.dump(model.IPv4), -1) {
		seen[m[1]] = true
	}
	assert.Len(t, seen, 4, "one for each port that has no set of its own")
}

func TestANamespaceHasSetsOfClientsOfItsOwn(t *testing.T) {
	r := newStickyRig(t)
	r.services("a", 0, 30)
	r.services("bb", 0, 30)
	r.Sync()
	sets := r.sets()
	assert.Len(t, sets, 2*(16+1))
	assert.NotEqual(t, sets["namespace a"], sets["namespace bb"])
	for i := range 30 {
		for _, ns := range []string{"a", "bb"} {
			port := fmt.Sprintf("%s/s%d:p/TCP", ns, i)
			assert.Contains(t, []string{sets[port], sets["namespace "+ns]}, r.setOf(port), port)
		}
	}
}

func TestAServicePortStaysInItsSetOfClients(t *testing.T) {
	r := newStickyRig(t)
	r.services("shop", 0, 24)
	r.Sync()
	before := map[string]string{}
	for i := range 24 {
		port := fmt.Sprintf("shop/s%d:p/TCP", i)
		before[port] = r.setOf(port)
	}
	same := func(t *testing.T) {
		for port, set := range before {
			if r.setOf(port) != "" {
				assert.Equal(t, set, r.setOf(port), port)
			}
		}
	}
	t.Run("when others go", func(t *testing.T) {
		for i := range 24 {
			if port := fmt.Sprintf("shop/s%d:p/TCP", i); i%3 == 0 && strings.HasPrefix(before[port], "affinity-") {
				r.Delete(model.ServiceName{Namespace: "shop", Name: fmt.Sprint("s", i)})
			}
		}
		r.Sync()
		same(t)
	})
	t.Run("when its endpoints change", func(t *testing.T) {
		r.Delete(fm.Endpoint("shop/s1:p/TCP", "10.244.2.1:80").Build())
		r.Set(fm.Endpoint("shop/s1:p/TCP", "10.244.9.1:80").Build())
		r.Sync()
		same(t)
	})
	t.Run("across a restart", func(t *testing.T) {
		r.Restart()
		r.services("shop", 100, 110) // which may not take a set that was there
		r.Sync()
		same(t)
		assert.NotContains(t, joined(r.commands(model.IPv4)), "set affinity-")
	})
	t.Run("when a resync finds that others have been there", func(t *testing.T) {
		r.backend.ForceResync()
		r.Sync()
		same(t)
	})
}

// A table of the version before has a set for each service port.
func TestSetsOfClientsOfTheVersionBeforeAreKeptWithinTheLimit(t *testing.T) {
	r := newStickyRig(t)
	r.services("shop", 0, 16)
	r.services("before", 0, 40)
	r.Sync()
	of := map[string]string{}
	for i := range 16 {
		port := fmt.Sprintf("shop/s%d:p/TCP", i)
		of[port] = r.setOf(port)
	}
	// What that version would have had for the others.
	tx := dataplane.NewTransaction(dataplane.TableKey{Family: model.IPv4, Name: nft.DefaultTableName})
	have := r.dump(model.IPv4)
	chains := regexp.MustCompile(`chain (affinity-\w+)-before/s\d+/tcp/p-cluster`)
	for _, m := range chains.FindAllStringSubmatch(have, -1) {
		if !strings.Contains(have, "set "+m[1]+" {") {
			tx.AddSet(&dataplane.Set{Name: m[1], Key: []dataplane.Field{dataplane.SourceAddr, dataplane.Constant},
				Dynamic: true})
		}
	}
	require.NoError(t, r.fake.Apply(t.Context(), tx))
	r.Restart()
	r.Sync()
	assert.NotContains(t, joined(r.commands(model.IPv4)), "delete table")
	for port, set := range of {
		assert.Equal(t, set, r.setOf(port))
	}
	assert.Len(t, r.sets(), 16+16+1)
}

func TestFurtherNamespacesShareSetsOfClients(t *testing.T) {
	r := newStickyRig(t)
	for i := range 600 {
		name := fmt.Sprintf("n%d/s", i)
		r.Set(fm.Service(name).ClusterIP(fmt.Sprintf("10.97.%d.%d", i>>8, i&255)).Port("p", 80).Affinity(time.Hour).Build(),
			fm.Endpoint(name+":p/TCP", "10.244.2.1:80").Build())
	}
	r.Sync()
	assert.Len(t, r.sets(), 600, "each namespace has its own")
	for i := range 600 {
		r.Delete(model.ServiceName{Namespace: fmt.Sprint("n", i), Name: "s"})
	}
	r.Sync()
	for i := range 1200 {
		name := fmt.Sprintf("m%d/s", i)
		r.Set(fm.Service(name).ClusterIP(fmt.Sprintf("10.98.%d.%d", i>>8, i&255)).Port("p", 80).Affinity(time.Hour).Build(),
			fm.Endpoint(name+":p/TCP", "10.244.2.1:80").Build())
	}
	r.Sync()
	sets := strings.Count(r.dump(model.IPv4), "\tset clients-common-")
	assert.Positive(t, sets)
	assert.LessOrEqual(t, sets, 64)
	assert.Equal(t, 512+512, strings.Count(r.dump(model.IPv4), "flags dynamic")-sets)
	for i := range 1200 {
		r.Delete(model.ServiceName{Namespace: fmt.Sprint("m", i), Name: "s"})
	}
	r.Sync()
	assert.NotContains(t, r.dump(model.IPv4), "flags dynamic")
}
