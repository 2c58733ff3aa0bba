// Package hostaddr reads the addresses of the machine that the process runs on, for package nodeaddr. It is separate
// because it links a netlink library, which a program with another source of addresses does not need.
package hostaddr
