package nft

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// assignSlots distributes the endpoints of a set, sorted by model.CompareTargets, over slots 0 to len(want)-1, which
// random numbers pick from. Endpoints stay in the slot that they have in old wherever they can, so that few slots change.
// It returns old itself if it will do.
func assignSlots(old, want []netip.AddrPort) []netip.AddrPort {
	if len(old) == 0 {
		return want
	}
	if len(want) == 0 {
		return nil
	}
	slots := make([]netip.AddrPort, len(want))
	placed := make([]bool, len(want))
	same := len(old) == len(want)
	for i, o := range old {
		j, wanted := slices.BinarySearchFunc(want, o, model.CompareTargets)
		if wanted && i < len(slots) && !placed[j] {
			slots[i], placed[j] = o, true
		} else {
			same = false
		}
	}
	if same {
		return old
	}
	free := 0
	for j, w := range want {
		if !placed[j] {
			for slots[free].IsValid() {
				free++
			}
			slots[free] = w
		}
	}
	return slots
}
