package config_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/randfill"

	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
)

// filler sets every field of a configuration to something that is not its zero value, most of it not valid. With a
// nilChance of more than 0 some pointers, lists, maps, texts and durations are not set.
func filler(seed int64, nilChance float64) *randfill.Filler {
	modes := []string{"", "iptables", "ipvs", "nftables", "kernelspace"}
	return randfill.NewWithSeed(seed).NilChance(nilChance).NumElements(1, 3).Funcs(
		func(s *string, c randfill.Continue) {
			if *s = ""; c.Float64() >= nilChance {
				*s = string(rune('a'+c.Intn(26))) + strings.ReplaceAll(c.String(5), ",", "")
			}
		},
		func(d *metav1.Duration, c randfill.Continue) {
			if d.Duration = 0; c.Float64() >= nilChance {
				d.Duration = 1 + time.Duration(c.Int63n(int64(time.Hour)))
			}
			if c.Intn(4) == 0 {
				d.Duration = -d.Duration
			}
		},
		func(q *resource.QuantityValue, c randfill.Continue) {
			q.Quantity = resource.MustParse(fmt.Sprint(1 + c.Intn(1000)))
		},
		func(m *v1alpha1.ProxyMode, c randfill.Continue) { *m = v1alpha1.ProxyMode(modes[c.Intn(len(modes))]) },
		func(m *v1alpha2.ProxyMode, c randfill.Continue) { *m = v1alpha2.ProxyMode(modes[c.Intn(len(modes))]) },
	)
}

const rounds = 300

func TestDefaultsDoNotOverrideSetFields(t *testing.T) {
	fill := filler(1, 0)
	for range rounds {
		c := &v1alpha2.KubeProxyConfiguration{}
		fill.Fill(c)
		before := c.DeepCopy()
		v1alpha2.SetDefaults(c)
		before.TypeMeta = c.TypeMeta
		require.Equal(t, before, c)

		old := &v1alpha1.KubeProxyConfiguration{}
		fill.Fill(old)
		oldBefore := old.DeepCopy()
		config.SetDefaultsV1alpha1(old)
		oldBefore.TypeMeta = old.TypeMeta
		require.Equal(t, oldBefore, old)
	}
}

func TestDeepCopyIsEqualAndSharesNothing(t *testing.T) {
	c := &v1alpha2.KubeProxyConfiguration{}
	filler(2, 0).Fill(c)
	before := asJSON(t, c)
	copied := c.DeepCopy()
	require.Equal(t, c, copied)
	require.Positive(t, clearShared(reflect.ValueOf(copied).Elem()))
	assert.JSONEq(t, before, asJSON(t, c), "the copy was written to, and the original changed")
	assert.Nil(t, (*v1alpha2.KubeProxyConfiguration)(nil).DeepCopy())
}

func TestConversionSharesNothing(t *testing.T) {
	old := &v1alpha1.KubeProxyConfiguration{}
	filler(3, 0).Fill(old)
	before := asJSON(t, old)
	c, _ := config.FromV1alpha1(old)
	*c.IPVS.MasqueradeBit = 99
	assert.NotEqual(t, int32(99), *c.IPTables.MasqueradeBit, "the two come from one field")
	require.Positive(t, clearShared(reflect.ValueOf(c).Elem()))
	assert.JSONEq(t, before, asJSON(t, old))

	filler(4, 0).Fill(c)
	before = asJSON(t, c)
	old, _ = config.ToV1alpha1(c)
	require.Positive(t, clearShared(reflect.ValueOf(old).Elem()))
	assert.JSONEq(t, before, asJSON(t, c))
}

// A field that a round trip through the other version changes is named by a warning. A field of a mode that is not in
// use needs none in two cases: it had its default, or the value that is used for all modes.
func TestRoundTripFromV1alpha1KeepsWhatItDoesNotWarnOf(t *testing.T) {
	for _, nilChance := range []float64{0, 0.5} {
		fill := filler(5, nilChance)
		for range rounds {
			old := &v1alpha1.KubeProxyConfiguration{}
			fill.Fill(old)
			there, warnings := config.FromV1alpha1(old)
			back, more := config.ToV1alpha1(there)
			require.Empty(t, more, "all that came from version v1alpha1 can go back")
			config.SetDefaultsV1alpha1(old)
			requireWarned(t, asJSON(t, old), asJSON(t, back), warnings, map[string]bool{
				"iptables.masqueradeAll": there.Linux.MasqueradeAll,
				"nftables.masqueradeAll": there.Linux.MasqueradeAll,
			})
		}
	}
}

func TestRoundTripFromV1alpha2KeepsWhatItDoesNotWarnOf(t *testing.T) {
	for _, nilChance := range []float64{0, 0.5} {
		fill := filler(6, nilChance)
		for range rounds {
			c := &v1alpha2.KubeProxyConfiguration{}
			fill.Fill(c)
			there, warnings := config.ToV1alpha1(c)
			back, more := config.FromV1alpha1(there)
			require.Empty(t, more, "all that came from version v1alpha2 can go back")
			v1alpha2.SetDefaults(c)
			requireWarned(t, asJSON(t, c), asJSON(t, back), warnings, map[string]bool{
				"iptables.masqueradeBit": *c.IPTables.MasqueradeBit == 14,
				"ipvs.masqueradeBit":     *c.IPVS.MasqueradeBit == 14,
			})
		}
	}
}

func TestRoundTripThroughYAML(t *testing.T) {
	for _, nilChance := range []float64{0, 0.5} {
		fill := filler(7, nilChance)
		for range rounds {
			c := &v1alpha2.KubeProxyConfiguration{}
			fill.Fill(c)
			makeValid(t, c)

			var first, second bytes.Buffer
			require.NoError(t, config.Write(&first, c))
			loaded, warnings, err := config.Load(first.Bytes())
			require.NoError(t, err)
			require.Empty(t, warnings)
			require.JSONEq(t, asJSON(t, c), asJSON(t, loaded))
			require.NoError(t, config.Write(&second, loaded))
			require.Equal(t, first.String(), second.String())
		}
	}
}

// With configHardFail false, Check leaves something valid, whatever it is given.
func TestCheckLeavesAValidConfiguration(t *testing.T) {
	fill := filler(8, 0.1)
	for range rounds {
		c := &v1alpha2.KubeProxyConfiguration{}
		fill.Fill(c)
		makeValid(t, c)
		require.Empty(t, config.Validate(c))
	}
}

// makeValid replaces invalid values with the defaults.
func makeValid(t *testing.T, c *v1alpha2.KubeProxyConfiguration) {
	v1alpha2.SetDefaults(c)
	hardFail := *c.ConfigHardFail
	*c.ConfigHardFail = false
	warnings, err := config.Check(c)
	require.NoError(t, err)
	require.NotEmpty(t, warnings, "a random configuration is hardly valid")
	*c.ConfigHardFail = hardFail
}

// requireWarned requires that each field with two values in two objects is the subject of a warning, or excused.
func requireWarned(t *testing.T, before, after string, warnings []config.Warning, excused map[string]bool) {
	var a, b map[string]any
	require.NoError(t, json.Unmarshal([]byte(before), &a))
	require.NoError(t, json.Unmarshal([]byte(after), &b))
	for _, field := range differences("", a, b) {
		require.True(t, excused[field] || slices.ContainsFunc(warnings, func(w config.Warning) bool {
			list, _, _ := strings.Cut(w.Field, "[")
			return list == field
		}), "%s is lost without a warning", field)
	}
}

// differences returns the paths of the fields that are not the same.
func differences(path string, a, b map[string]any) []string {
	var paths []string
	for name := range a {
		sectionA, isSection := a[name].(map[string]any)
		sectionB, _ := b[name].(map[string]any)
		if isSection && sectionB != nil {
			paths = append(paths, differences(path+name+".", sectionA, sectionB)...)
		} else if !assert.ObjectsAreEqual(a[name], b[name]) {
			paths = append(paths, path+name)
		}
	}
	for name := range b {
		if _, both := a[name]; !both {
			paths = append(paths, path+name)
		}
	}
	return paths
}

func asJSON(t *testing.T, v any) string {
	encoded, err := json.Marshal(v)
	require.NoError(t, err)
	return string(encoded)
}

// clearShared sets to zero everything behind pointers, slices and maps, and returns how much that was.
func clearShared(v reflect.Value) int {
	n := 0
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				n += clearShared(v.Field(i))
			}
		}
	case reflect.Pointer:
		if !v.IsNil() {
			v.Elem().SetZero()
			n++
		}
	case reflect.Slice:
		for i := range v.Len() {
			v.Index(i).SetZero()
			n++
		}
	case reflect.Map:
		v.Clear()
		n++
	}
	return n
}
