// Package nfnetlink speaks the netlink protocol of the kernel's netfilter subsystems, nf_tables and conntrack: it
// builds messages into one buffer, takes answers apart without copying them, and has the socket that both go through.
//
// It exists beside github.com/mdlayher/netlink, which opens the socket, because that library allocates memory for each
// message and each read, and the runtime learns of each answer: for the dump of a large conntrack table, or of
// thousands of chains, that is most of the work.
//
// Everything here is for Linux; elsewhere the package is empty.
package nfnetlink
