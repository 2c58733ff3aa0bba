// Package dataplane is the part of iptables that the iptables backend needs, behind one narrow interface: [Interface].
// [New] runs the programs. [NewFake] keeps the text of chains in memory, for tests that run anywhere.
//
// # What it does
//
// A [Batch] is one run of iptables-restore --noflush: chains to create, fill and remove, and rules to insert into
// built-in chains. Each table changes atomically; with several tables, those before the one that fails are changed. A
// failed batch can be applied again: it replaces what exists, and ignores what is already gone. An error names the
// line, the rule, and the owner of the rule: see [RestoreError].
//
// Read returns the backend's chains and the rules that jump to them, as text in canonical form: exactly as they were
// written, for both variants and any C library of the programs. [Quote], [Address], [Masked] and [Probability] write
// that form, and a test checks that the real programs print it (1.8.9).
//
// [RemoveChains] cleans up in an order that does not disturb packets in flight.
//
// Programs run in the network namespace in which New was called, whichever goroutine calls. They end with the context.
//
// # What it never does
//
// It never flushes a table, and never touches a chain that a batch does not name. It starts no program in the
// background.
//
// # Which iptables
//
// Since 1.8 there are two variants: iptables-nft writes to nf_tables, iptables-legacy to x_tables. Rules of both are
// active at the same time, so a node should use only one. [Options] selects the variant for New. Versions before 1.8
// are legacy; those before 1.6.2 are rejected.
//
// # What it costs
//
// CPU milliseconds of the programs, without rules and with 50,000 in 500 chains of table nat, on two busy cores (Linux
// 6.18, iptables 1.8.9):
//
//	                                        nft            legacy
//	                                     0   50,000      0   50,000
//	Restore of one chain               1.6      1.7    1.2      210   (nft waits 5-20 ms for the kernel)
//	Restore that deletes what is gone  1.3      1.3    1.1       60
//	Read                               1.6      440    1.0      120
//	Generation, no program            0.03     0.03   0.01     0.01
//
// The programs take 13 MB with nft, 57 MB for Read and 98 MB to load the 50,000; with legacy 33 to 49 MB. Read itself
// takes the memory of its result, 8 MB. With nft the cost of a Restore depends only on the batch, not on the existing
// rules, even with 2,000 chains; legacy reads and replaces the whole table each time. If a rule to delete does not
// exist, iptables-restore refuses the batch; it is then run again without that rule.
//
// # Surprises
//
//   - If the kernel refuses a rule, iptables-legacy says only that COMMIT failed: the rule is not known then, and the
//     reason is in the kernel's log. iptables-nft names the line, but for a jump to a missing chain it names COMMIT;
//     this package looks for that rule itself.
//   - iptables-nft-save reports a table that it cannot print in a comment, and succeeds. Read fails with
//     [ErrIncompatible].
//   - If the kernel does not support table nat, iptables-nft lists an empty one. New asks the kernel.
//   - iptables-legacy loads the module of a table that it only lists. [OpenInUse] avoids that.
//   - All network namespaces share the lock of iptables-legacy, /run/xtables.lock.
//   - After a rule that matches every packet, iptables-legacy accepts rules that it rejects elsewhere.
package dataplane
