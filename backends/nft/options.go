package nft

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"regexp"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/internal/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
)

// DefaultTableName is the name of the tables, one in family ip and one in ip6. It differs from upstream kube-proxy's,
// so that neither mistakes the other's table for its own.
const DefaultTableName = "kube-proxy-lib"

// defaultMasqueradeMark is bit 14 of the packet mark (S31).
const defaultMasqueradeMark = 1 << 14

// Options configure a [Backend]. The zero value is usable.
type Options struct {
	// TableName is the name of the backend's tables. Tables of that name belong to the backend: it corrects them, or
	// replaces those of another layout. Other tables are never touched. Default: DefaultTableName.
	TableName string
	// MasqueradeMark is the bit of the packet mark that is set on packets to masquerade, and cleared again when they
	// are (S31). Default: bit 14.
	MasqueradeMark uint32
	// NodePortAddresses says which of the host's addresses serve node ports (S35), loopback addresses excepted.
	// Default, the zero Choice: all of them. Kube-proxy's default in mode nftables is Choice.Primary.
	NodePortAddresses nodeaddr.Choice
	// Families are the families to serve. Default, nil: IPv4, and IPv6 if the kernel supports it.
	Families []model.Family
	// Dataplane is where rules are written. Default: the kernel, in the network namespace of the thread that calls New.
	// The backend does not close a Dataplane that it is given.
	Dataplane dataplane.Interface
	// OnProblem, if given, is called once for each part of a service port that is not served, during Sync, for example
	// to create an Event. Problems are logged in any case.
	OnProblem func(ctx context.Context, p frontend.Problem)
	// Metrics, if given, is the registry for the metrics: they are registered until Close. Names and labels are
	// kube-proxy's; see the package documentation for the list. Give each of several backends a distinct label with
	// prometheus.WrapRegistererWith.
	Metrics prometheus.Registerer
}

// tableName matches the names that nft can read back. The kernel accepts more.
var tableName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,63}$`)

// validate returns an error that joins everything invalid.
func (o *Options) validate() error {
	errs := []error{frontend.CheckFamilies(o.Families), o.NodePortAddresses.Validate()}
	if o.TableName != "" && !tableName.MatchString(o.TableName) {
		errs = append(errs, fmt.Errorf("tableName: %q is not a letter and up to 63 letters, digits, '_', '.' and '-'",
			o.TableName))
	}
	if bits.OnesCount32(o.MasqueradeMark) > 1 {
		errs = append(errs, fmt.Errorf("masqueradeMark: %#x is not one bit", o.MasqueradeMark))
	}
	return errors.Join(errs...)
}

// withDefaults returns the options with their defaults filled in, except for the dataplane and the families.
func (o Options) withDefaults() Options {
	if o.TableName == "" {
		o.TableName = DefaultTableName
	}
	if o.MasqueradeMark == 0 {
		o.MasqueradeMark = defaultMasqueradeMark
	}
	return o
}
