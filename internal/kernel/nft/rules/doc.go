// Package rules makes the nftables rules that the backends nft and ipvs have in common: the sets that packets are
// looked up in, the chains that dispatch them by source, and the base chains. It compares tables with what they should
// be, and applies the difference. Package dataplane below it knows the kernel's encoding, and nothing of services.
package rules
