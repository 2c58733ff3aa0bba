package sysctl

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"time"

	"k8s.io/klog/v2"
)

// Conntrack has the limits of connection tracking, as in kube-proxy's configuration (S42). Zero fields leave the
// kernel's values unchanged.
type Conntrack struct {
	// MaxPerCore and Min determine the minimum of the kernel's connection limit: MaxPerCore times CPUs, at most 1,048,576
	// and at least Min. A higher limit stays. Min has no effect without MaxPerCore.
	MaxPerCore, Min int
	// TCPEstablishedTimeout is the timeout of an idle TCP connection.
	TCPEstablishedTimeout time.Duration
	// TCPCloseWaitTimeout is the timeout of a TCP connection that only one side has closed.
	TCPCloseWaitTimeout time.Duration
	// UDPTimeout and UDPStreamTimeout are the timeouts of an idle UDP flow with packets in one direction only, and in
	// both.
	UDPTimeout, UDPStreamTimeout time.Duration
	// TCPBeLiberal accepts TCP packets outside the window instead of treating them as invalid. False leaves the
	// kernel's value unchanged.
	TCPBeLiberal bool
	// CPUs is the number of cores. Default: all online cores of the machine, even if the process or its container may not
	// run on all of them.
	CPUs int
}

// maxConntrack limits the result of MaxPerCore on a large machine: an entry takes about 300 bytes of kernel memory.
const maxConntrack = 1 << 20

// limit returns the minimum of the kernel's connection limit, or 0 to leave it unchanged.
func (c Conntrack) limit() int {
	if c.MaxPerCore <= 0 {
		return 0
	}
	return max(min(c.MaxPerCore*c.CPUs, maxConntrack), c.Min)
}

// cpus returns the number of online CPUs of the machine, even if the process or its container may not run on all of
// them. If the system does not report it, it returns runtime.NumCPU.
func (r Root) cpus() int {
	online, err := read(r.path("sys/devices/system/cpu/online"))
	if n, ok := countList(online); err == nil && ok {
		return n
	}
	return runtime.NumCPU()
}

// countList counts the numbers in a kernel list such as "0-3,6".
func countList(list string) (n int, ok bool) {
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err1 := strconv.ParseUint(from, 10, 16)
		last, err2 := strconv.ParseUint(to, 10, 16)
		if err1 != nil || err2 != nil || last < first {
			return 0, false
		}
		n += int(last-first) + 1
	}
	return n, true
}

const netfilter = "net/netfilter/nf_conntrack_"

// Apply sets the parameters. If one cannot be set, it still sets the others; the error joins an [*Error] for each
// failure.
//
// The limit is only ever raised: a higher one, or 0 (unlimited), is the administrator's and stays. The hash table is
// enlarged to at most 4 connections per slot on average, and never reduced. Both apply to the whole machine, and can be
// set only in its initial network namespace. In other namespaces, for example on a node that is a container, they cause
// an error only if they are too low.
func (c Conntrack) Apply(ctx context.Context, root Root) error {
	logger := klog.FromContext(ctx)
	var errs []error
	apply := func(name, file string, value int, good func(got string) bool) {
		changed, err := set(name, root.path(file), strconv.Itoa(value), good)
		if changed && err == nil {
			logger.Info("Set a kernel parameter", "name", name, "value", value)
		}
		errs = append(errs, err)
	}
	setInt := func(name string, value int) {
		apply(name, "proc/sys/"+name, value, func(got string) bool { return got == strconv.Itoa(value) })
	}
	if c.CPUs <= 0 {
		c.CPUs = root.cpus()
	}
	if most := c.limit(); most > 0 {
		const maximum, hashSize = netfilter + "max", "sys/module/nf_conntrack/parameters/hashsize"
		apply(maximum, "proc/sys/"+maximum, most, func(got string) bool { return got == "0" || atLeast(got, most) })
		slots := most / 4
		apply(hashSize, hashSize, slots, func(got string) bool { return atLeast(got, slots) }) // the kernel rounds up
	}
	for _, t := range []struct {
		name    string
		timeout time.Duration
	}{
		{"tcp_timeout_established", c.TCPEstablishedTimeout},
		{"tcp_timeout_close_wait", c.TCPCloseWaitTimeout},
		{"udp_timeout", c.UDPTimeout},
		{"udp_timeout_stream", c.UDPStreamTimeout},
	} {
		if t.timeout > 0 {
			seconds := (t.timeout + time.Second - 1) / time.Second
			setInt(netfilter+t.name, int(seconds))
		}
	}
	if c.TCPBeLiberal {
		setInt(netfilter+"tcp_be_liberal", 1)
	}
	return errors.Join(errs...)
}

// atLeast reports whether a parameter's value is at least n.
func atLeast(value string, n int) bool {
	got, err := strconv.ParseInt(value, 10, 64)
	return err == nil && got >= int64(n)
}
