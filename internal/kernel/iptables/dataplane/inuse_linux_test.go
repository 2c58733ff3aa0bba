package dataplane

import (
	"io/fs"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
)

func TestOpenInUse(t *testing.T) {
	const rules, none = "*nat\n-A PREROUTING -j ACCEPT\nCOMMIT", "*nat\nCOMMIT"
	nft, legacy := "iptables v1.8.9 (nf_tables)", "iptables v1.8.9 (legacy)"
	noPermission := merged(three("iptables-legacy", legacy, ""), map[string]string{
		"iptables-legacy-save": "echo \"iptables-save v1.8.9 (legacy): Cannot initialize: Permission denied\" >&2; exit 1",
	})
	broken := merged(three("ip6tables-nft", nft, ""), map[string]string{"ip6tables-nft": "echo broken >&2; exit 127"})
	for name, tc := range map[string]struct {
		scripts  map[string]string
		families []model.Family
		only     Variant
		want     []string // what is open
		errs     []string // what the error says; nil: none
	}{
		"no iptables at all": {},
		"those with rules": {
			scripts: merged(three("iptables-nft", nft, rules), three("iptables-legacy", legacy, none),
				three("ip6tables-nft", nft, none), three("ip6tables-legacy", legacy, rules)),
			want: []string{"IPv4 nft", "IPv6 legacy"},
		},
		"of one variant": {
			scripts: merged(three("iptables-nft", nft, rules), noPermission), only: NFT,
			want: []string{"IPv4 nft"},
		},
		"of one family": {
			scripts: merged(three("iptables-nft", nft, rules), broken), families: []model.Family{model.IPv4},
			want: []string{"IPv4 nft"},
		},
		"what can be looked into, where one cannot": {
			scripts: merged(three("iptables-nft", nft, rules), noPermission, three("ip6tables-nft", nft, rules)),
			want:    []string{"IPv4 nft", "IPv6 nft"}, errs: []string{"iptables-legacy: IPv4: ", "Permission denied"},
		},
		"all that cannot be looked into is named": {
			scripts: merged(three("iptables-nft", nft, rules), noPermission, broken),
			want:    []string{"IPv4 nft"},
			errs:    []string{"iptables-legacy: IPv4: ", "iptables-nft: ", "ip6tables-nft", "broken"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			installed(t, tc.scripts)
			var got []string
			testkit.NewNamespace(t).Do(func() error {
				found, err := OpenInUse(t.Context(), tc.families, tc.only)
				for _, d := range found {
					got = append(got, d.Features().Family.String()+" "+string(d.Features().Variant))
					require.NoError(t, d.Close())
				}
				for _, text := range tc.errs {
					assert.ErrorContains(t, err, text)
				}
				if len(tc.errs) == 0 {
					return err
				}
				return nil
			})
			assert.Equal(t, tc.want, got)
		})
	}
	installed(t, noPermission)
	_, err := OpenInUse(t.Context(), nil, "")
	assert.ErrorIs(t, err, fs.ErrPermission)
}
