// Package dataplane is what the iptables backend needs of iptables, behind one narrow interface: [Interface]. [New]
// runs the programs, [NewFake] is an iptables in memory that runs anywhere, checks what it is asked to do, and prints
// what it holds.
//
// # What it does
//
// A [Batch] is one run of iptables-restore --noflush: chains to make, fill and remove, and rules to put into built-in
// chains. A table is changed wholly or not at all; with several tables, those before the one that fails are changed. A
// batch that failed can be applied again: what exists already is replaced, and what is gone already is no error. An
// error names the line, the rule, and the owner of the rule: see [RestoreError].
//
// Read returns our own chains and the rules that jump to them, as text, in one form: what was written comes back the
// same, from both variants, whatever C library the programs are linked with. [Quote], [Address], [Masked] and
// [Probability] write that form, the fake insists on it, and a test holds the real programs to it (1.8.9).
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
// Since 1.8 there are two: iptables-nft writes to nf_tables, iptables-legacy to x_tables, and rules in both work side
// by side, which nobody should want. [Options] says which one New takes. Versions before 1.8 are legacy; those before
// 1.6.2 are refused.
//
// # What it costs
//
// With no rules and with 50,000 in 500 chains of table nat, on two busy cores (Linux 6.18, iptables 1.8.9);
// milliseconds of processor time of the program:
//
//	                                        nft            legacy
//	                                     0   50,000      0   50,000
//	Restore of one chain               1.6      1.7    1.2      210   (nft waits 5-20 ms for the kernel)
//	Restore that deletes what is gone  1.3      1.3    1.1       60
//	Read                               1.6      440    1.0      120
//	Generation, no program            0.03     0.03   0.01     0.01
//
// The programs take 13 MB with nft, 57 MB for Read and 98 MB to load the 50,000; with legacy 33 to 49 MB. Read itself
// takes the memory of what it returns, 8 MB. With nft the cost of a Restore is that of the batch, however much is
// there, also with 2,000 chains; legacy reads and replaces the whole table each time. A rule to delete that is not
// there makes iptables-restore refuse the batch; it is then run again without that rule.
//
// # What surprises
//
//   - iptables-legacy says of what the kernel refuses only that COMMIT failed: the rule is not known then, the reason
//     is in the kernel's log. iptables-nft names the line, but for a jump to a chain that is not there names COMMIT;
//     that rule is looked for here.
//   - iptables-nft-save reports a table that it cannot print in a comment, and succeeds. Read fails with
//     [ErrIncompatible].
//   - If the kernel cannot have a table nat, iptables-nft lists an empty one. New asks the kernel.
//   - iptables-legacy loads the module of a table that it is only asked about. [OpenInUse] avoids that.
//   - The lock of iptables-legacy, /run/xtables.lock, is one for all network namespaces.
//   - After a rule that matches every packet iptables-legacy accepts rules that it refuses elsewhere. The fake does
//     not.
package dataplane
