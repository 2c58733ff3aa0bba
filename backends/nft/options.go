package nft

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"regexp"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
)

// DefaultTableName is the name of the tables, one in family ip and one in ip6. It is not that of upstream kube-proxy,
// so that the two do not take each other's table for their own.
const DefaultTableName = "kube-proxy-lib"

// defaultMasqueradeMark is bit 14 of the packet mark (S31).
const defaultMasqueradeMark = 1 << 14

// Options configure a [Backend]. The zero value is a good choice.
type Options struct {
	// TableName is the name of the backend's tables. Whatever is in tables of that name is the backend's: it is
	// corrected, or replaced if it is of another layout. Other tables are never touched. Default: DefaultTableName.
	TableName string
	// MasqueradeMark is the bit of the packet mark that is set on packets to masquerade, and cleared again when they
	// are (S31). Default: bit 14.
	MasqueradeMark uint32
	// NodePortAddresses tells which of the host's addresses serve node ports (S35), loopback addresses excepted.
	// Default, the zero Choice: all of them. Kube-proxy's default in mode nftables is Choice.Primary.
	NodePortAddresses nodeaddr.Choice
	// Families are the families to serve. Default, nil: IPv4, and IPv6 if the kernel can.
	Families []model.Family
	// Dataplane is where rules go. Default: the kernel, in the network namespace of the thread that calls New. The
	// backend does not close one that it is given.
	Dataplane dataplane.Interface
	// OnProblem, if given, is told once what of a service port is not served and why, from within Sync: to make an
	// Event of it, say. It is logged in any case.
	OnProblem func(ctx context.Context, p frontend.Problem)
	// Metrics, if given, gets the metrics until Close. Names and labels are kube-proxy's; see the package documentation
	// for the list. For several backends give each a label of its own: prometheus.WrapRegistererWith.
	Metrics prometheus.Registerer
}

// tableName is what nft can read back. The kernel would take more.
var tableName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,63}$`)

// Validate returns everything that is wrong.
func (o *Options) Validate() error {
	errs := []error{frontend.CheckFamilies(o.Families)}
	if o.TableName != "" && !tableName.MatchString(o.TableName) {
		errs = append(errs, fmt.Errorf("tableName: %q is not a letter and up to 63 letters, digits, '_', '.' and '-'",
			o.TableName))
	}
	if bits.OnesCount32(o.MasqueradeMark) > 1 {
		errs = append(errs, fmt.Errorf("masqueradeMark: %#x is not one bit", o.MasqueradeMark))
	}
	for _, p := range o.NodePortAddresses.CIDRs {
		if !p.IsValid() {
			errs = append(errs, fmt.Errorf("nodePortAddresses: %v is not a prefix", p))
		}
	}
	return errors.Join(errs...)
}

// withDefaults returns the options with nothing left open, except the dataplane and the families.
func (o Options) withDefaults() Options {
	if o.TableName == "" {
		o.TableName = DefaultTableName
	}
	if o.MasqueradeMark == 0 {
		o.MasqueradeMark = defaultMasqueradeMark
	}
	return o
}
