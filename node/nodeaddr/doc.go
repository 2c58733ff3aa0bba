// Package nodeaddr determines which of the host's addresses serve node ports (S35), and follows their changes.
//
//   - A [Choice] is what kube-proxy's configuration calls nodePortAddresses: address ranges and the keywords "primary",
//     "localhost" and "all", in any mix. [Parse] parses it.
//   - [Addresses] is the result of a choice on a host at some time: a plain value that a backend converts to rules.
//   - A [Tracker] keeps it up to date, with the kernel's notifications of address changes; it does not poll.
//
// A [Host] is the source of addresses: package hostaddr has this machine, and [Fake] is for tests.
package nodeaddr
