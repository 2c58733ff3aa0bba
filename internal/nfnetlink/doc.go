// Package nfnetlink speaks the netlink protocol of the kernel's netfilter subsystems, nf_tables and conntrack: it
// builds messages into one buffer, takes answers apart without copying them, and has the socket that both go through.
//
// It exists beside github.com/mdlayher/netlink, which opens the socket, because that library allocates each message and
// each read: for the dump of a large conntrack table, or a transaction of 300,000 elements, this is most of the work.
//
// Everything here is for Linux; elsewhere the package is empty.
package nfnetlink
