package nft

import (
	"cmp"
	"fmt"
	"regexp"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
)

// DefaultTableName is the name of the tables, one in family ip and one in ip6. It differs from upstream kube-proxy's,
// so that neither mistakes the other's table for its own.
const DefaultTableName = "kube-proxy-lib"

// Options configure a [Backend]. The zero value is usable.
type Options struct {
	// Common are the options that all backends have. Kube-proxy's default of NodePortAddresses in mode nftables is
	// Choice.Primary.
	frontend.Common
	// TableName is the name of the backend's tables. Tables of that name belong to the backend: it corrects them, or
	// replaces those of another layout. Other tables are never touched. Default: DefaultTableName.
	TableName string
	// Dataplane is where rules are written. Default: the kernel, in the network namespace of the thread that calls New.
	// The backend does not close a Dataplane that it is given.
	Dataplane Dataplane
}

// StickyLimits returns how many endpoints and ports with session affinity one service and the services of one namespace
// may have in each family, unless [frontend.Limits] say otherwise. An endpoint has two rules, and for any change of a
// rule the kernel validates all of them: tens of milliseconds beside a service at its limit. A port has up to seven
// chains, and for any change at all the kernel walks all of them: 1.5 ms beside a namespace at its limit.
func StickyLimits() frontend.StickyLimits {
	return frontend.StickyLimits{Service: 1 << 15, Namespace: 1 << 17, ServicePorts: 1 << 13, NamespacePorts: 3 << 12}
}

// tableName matches the names that nft can read back. The kernel accepts more.
var tableName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,63}$`)

// complete fills in the default of TableName, and returns an error if it is invalid.
func (o *Options) complete() error {
	if o.TableName = cmp.Or(o.TableName, DefaultTableName); !tableName.MatchString(o.TableName) {
		return fmt.Errorf("tableName: %q must be a letter followed by at most 63 letters, digits, '_', '.' or '-'",
			o.TableName)
	}
	return nil
}
