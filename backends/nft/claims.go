package nft

import (
	"cmp"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/serviceport"
	dp "sigs.k8s.io/kube-proxy-lib/backends/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// claims knows which service ports want a key of service-ips or nodeports. Nothing keeps two services from listing the
// same external IP and port; then the one with the lowest kind has it, and among equals the first by name. The others
// get it as soon as that one goes.
type claims struct {
	only      map[claimKey]claim   // keys that one wants, as a rule
	contested map[claimKey][]claim // keys that several want, sorted
}

type claimKey struct {
	key      string
	nodePort bool
}

func newClaimKey(d *serviceport.Destination, p model.Protocol) claimKey {
	b := make([]byte, 0, 24)
	if d.Kind != serviceport.NodePort {
		b = dp.AppendAddr(b, d.Addr)
	}
	return claimKey{string(dp.AppendPort(dp.AppendProtocol(b, p), d.Port)), d.Kind == serviceport.NodePort}
}

type claim struct {
	kind serviceport.Kind
	name model.PortName
}

func (c claim) compare(o claim) int {
	return cmp.Or(cmp.Compare(c.kind, o.kind), c.name.Compare(o.name))
}

func newClaims(n int) claims {
	return claims{only: make(map[claimKey]claim, n), contested: map[claimKey][]claim{}}
}

// add returns who had the key before, if anybody had.
func (c *claims) add(k claimKey, cl claim) {
	if list, ok := c.contested[k]; ok {
		if i, found := slices.BinarySearchFunc(list, cl, claim.compare); !found {
			c.contested[k] = slices.Insert(list, i, cl)
		}
		return
	}
	if o, ok := c.only[k]; ok && o != cl {
		list := []claim{o, cl}
		slices.SortFunc(list, claim.compare)
		c.contested[k] = list
		delete(c.only, k)
		return
	}
	c.only[k] = cl
}

func (c *claims) remove(k claimKey, cl claim) {
	if list, ok := c.contested[k]; ok {
		if i, found := slices.BinarySearchFunc(list, cl, claim.compare); found {
			list = slices.Delete(list, i, i+1)
		}
		if c.contested[k] = list; len(list) == 1 {
			delete(c.contested, k)
			c.only[k] = list[0]
		}
		return
	}
	if c.only[k] == cl {
		delete(c.only, k)
	}
}

// winner returns who has a key, which somebody must want.
func (c *claims) winner(k claimKey) claim {
	if list, ok := c.contested[k]; ok {
		return list[0]
	}
	return c.only[k]
}

func (p *port) claim(fr *front) (claimKey, claim) {
	return fr.claimKey, claim{fr.Kind, p.Name}
}

// of returns all who want a key, the one who has it first. It is valid until the next change.
func (c *claims) of(k claimKey) []claim {
	if list, ok := c.contested[k]; ok {
		return list
	}
	if cl, ok := c.only[k]; ok {
		return []claim{cl}
	}
	return nil
}
