// Package nodeaddr finds out on which of the host's addresses node ports are served (S35), and follows them as they
// change.
//
//   - A [Choice] is what kube-proxy's configuration calls nodePortAddresses: address ranges, or "primary". [Parse]
//     reads it.
//   - [Addresses] is what a choice comes to on a host at some time: a plain value that a backend turns into rules.
//   - A [Tracker] keeps them up to date: the kernel says when the host's addresses change, nobody polls.
//
// A [Host] is where addresses come from; [System] is this one, and [Fake] is for tests. On other systems than Linux the
// addresses are read, but not followed.
package nodeaddr
