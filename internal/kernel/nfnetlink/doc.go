// Package nfnetlink implements the netlink protocol of the kernel's netfilter subsystems nf_tables and conntrack: it
// builds messages in one buffer, parses answers without copying them, and has a socket for both.
//
// It exists in addition to github.com/mdlayher/netlink, which opens the socket, because that library allocates memory
// for each message and each read, and the runtime's poller handles each answer: for the dump of a large conntrack
// table, or of thousands of chains, that is most of the work.
//
// Everything here is for Linux; elsewhere the package is empty.
package nfnetlink
