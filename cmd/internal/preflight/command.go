package preflight

import (
	"context"
	"flag"
	"io"
	"math"
	"time"

	"sigs.k8s.io/kube-proxy-lib/internal/source"
)

// Command is preflight as a command of a program that has its own flags for the cluster and the output.
type Command struct{ options options }

// Register adds the flags that are not about the source of the objects and the output.
func (c *Command) Register(set *flag.FlagSet) { c.options.register(set) }

// Run runs the command for a node, or for all nodes if there is no name. print prints the list of differences; if it is
// nil they are printed as text for people. It returns the number of differences; an error may be that not everything
// could be compared.
func (c *Command) Run(
	ctx context.Context, objects source.Flags, timeout time.Duration, print func(io.Writer, any) error, out io.Writer,
) (int, error) {
	o := &c.options
	o.objects, o.timeout, o.print = objects, timeout, print
	if timeout <= 0 {
		o.timeout = math.MaxInt64
	}
	o.all = o.all || objects.NodeName == ""
	if err := o.check(); err != nil {
		return 0, err
	}
	return o.run(ctx, out)
}
