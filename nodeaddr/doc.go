// Package nodeaddr determines which of the host's addresses serve node ports (S35), and follows their changes.
//
//   - A [Choice] is what kube-proxy's configuration calls nodePortAddresses: address ranges and the keywords "primary",
//     "localhost" and "all", in any mix. [Parse] parses it.
//   - [Addresses] is the result of a choice on a host at some time: a plain value that a backend turns into rules.
//   - A [Tracker] keeps them up to date: the kernel reports changes of the host's addresses, so it does not poll.
//
// A [Host] is the source of addresses; [System] is this machine, and [Fake] is for tests. On systems other than Linux
// the addresses are read once and not followed.
package nodeaddr
