// Package nodeaddr finds out on which of the host's addresses node ports are served (S35), and follows them as they
// change.
//
//   - A [Choice] is what kube-proxy's configuration calls nodePortAddresses: address ranges, or "primary". [Parse]
//     reads it.
//   - [Addresses] is the result of a choice on a host at some time: a plain value that a backend turns into rules.
//   - A [Tracker] keeps them up to date: the kernel reports changes of the host's addresses, so nothing polls.
//
// A [Host] is where addresses come from; [System] is this one, and [Fake] is for tests. On systems other than Linux the
// addresses are read once and not followed.
package nodeaddr
