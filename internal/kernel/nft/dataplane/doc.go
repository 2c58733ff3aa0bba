// Package dataplane is the part of nftables that the backends nft and ipvs need, behind one narrow interface:
// [Interface]. [Netlink] is the kernel, [Fake] is a model of it that runs anywhere, checks its calls, and can print its
// tables.
//
// # What it covers
//
// It covers tables with base chains and other chains, rules made of the few statements that a service proxy needs (see
// [Statement]), and sets and maps over concatenated packet fields. A [Transaction] changes one table, all of it or
// nothing. "nft list table" prints the result as a person would have written it, and the listing loads again: every set
// carries the expressions that its key is made of ("typeof").
//
// # Why not github.com/google/nftables alone
//
// Its expressions encode the rules here, and its user-data package the comments. Messages and transport are this
// package's own, over github.com/mdlayher/netlink, because google/nftables v0.3.0 falls short there: it asks for an
// acknowledgement for each message, of which a socket buffer holds a few hundred; it silently truncates element lists
// over 64 KiB; it cannot make a transaction conditional on the generation of the ruleset; and it has no comments for
// tables and chains. Here a transaction is one message batch with one acknowledgement, at memory speed.
//
// # What it never does
//
// It never touches a table other than the one that a transaction names, and it never creates a lookup whose key is the
// result of another lookup: the kernel accepts that, but "nft list ruleset" aborts on it (seen with 1.0.6 and 1.1.3).
package dataplane
