package command

import (
	"cmp"
	"fmt"
	"net"
	"strconv"
	"strings"

	netutils "k8s.io/utils/net"
)

// textValue is a flag for a named string type. It is validated with the whole configuration.
type textValue[T ~string] string

func (v *textValue[T]) Set(s string) error { *v = textValue[T](s); return nil }
func (v *textValue[T]) String() string     { return string(*v) }
func (v *textValue[T]) Type() string       { return "string" }

// ipValue is a flag for an IP.
type ipValue struct{ ip *string }

func (v ipValue) Set(s string) error {
	if s == "" {
		return nil // like kube-proxy: the default stays
	}
	if netutils.ParseIPSloppy(s) == nil {
		return fmt.Errorf("%q is not an IP address", s)
	}
	*v.ip = s
	return nil
}
func (v ipValue) String() string { return *v.ip }
func (v ipValue) Type() string   { return "ip" }

// ipPortValue is a flag for an IP with an optional port, or nothing.
type ipPortValue struct{ address *string }

func (v ipPortValue) Set(s string) error {
	if s != "" && netutils.ParseIPSloppy(s) == nil {
		host, port, err := net.SplitHostPort(s)
		if err != nil {
			return fmt.Errorf("%q is neither IP nor IP:port: %w", s, err)
		}
		if netutils.ParseIPSloppy(host) == nil {
			return fmt.Errorf("%q is not an IP address", host)
		}
		if _, err := netutils.ParsePort(port, true); err != nil {
			return fmt.Errorf("%q is not a port", port)
		}
	}
	*v.address = s
	return nil
}
func (v ipPortValue) String() string { return *v.address }
func (v ipPortValue) Type() string   { return "ipport" }

// versionValue is a flag that is true, false or raw.
type versionValue string

const versionRaw versionValue = "raw"

func (v *versionValue) Set(s string) error {
	if *v = versionRaw; s == string(versionRaw) {
		return nil
	}
	b, err := strconv.ParseBool(s)
	*v = versionValue(strconv.FormatBool(b))
	return err
}
func (v *versionValue) String() string { return cmp.Or(string(*v), "false") }
func (v *versionValue) Type() string   { return "version" }

// limitsValue is a flag for limits. Limits that it does not name keep their defaults.
type limitsValue struct {
	endpoints, frontends, sourceRanges, restrictedPorts, destinations, stickyEndpoints, stickyPorts *int
}

// kinds returns the names of the limits in output order, and their fields.
func (v limitsValue) kinds() (names []string, fields map[string]*int) {
	names = []string{"endpoints", "frontends", "source-ranges", "restricted-ports", "destinations", "sticky-endpoints",
		"sticky-ports"}
	return names, map[string]*int{
		"endpoints": v.endpoints, "frontends": v.frontends, "source-ranges": v.sourceRanges,
		"restricted-ports": v.restrictedPorts, "destinations": v.destinations, "sticky-endpoints": v.stickyEndpoints,
		"sticky-ports": v.stickyPorts}
}

func (v limitsValue) Set(s string) error {
	names, fields := v.kinds()
	for _, limit := range strings.Split(s, ",") {
		kind, number, _ := strings.Cut(limit, "=")
		field := fields[strings.TrimSpace(kind)]
		if field == nil {
			return fmt.Errorf("%q is not one of %s=N", limit, strings.Join(names, "=N, "))
		}
		n, err := strconv.Atoi(strings.TrimSpace(number))
		if err != nil || n <= 0 {
			return fmt.Errorf("%q: %q is not a number above 0", limit, number)
		}
		*field = n
	}
	return nil
}

func (v limitsValue) String() string {
	if v.frontends == nil {
		return ""
	}
	var limits []string
	names, fields := v.kinds()
	for _, kind := range names {
		if n := *fields[kind]; n != 0 {
			limits = append(limits, fmt.Sprintf("%s=%d", kind, n))
		}
	}
	return strings.Join(limits, ",")
}

func (v limitsValue) Type() string { return "limits" }
