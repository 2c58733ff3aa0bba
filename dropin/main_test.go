package dropin_test

import (
	"io"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/dropin"
	"sigs.k8s.io/kube-proxy-lib/dropin/command"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

func TestMain(m *testing.M) {
	dropin.ParseCommand = func(args []string, out io.Writer) (dropin.ParsedCommand, error) {
		c, err := command.Parse(args, out)
		if err != nil {
			return dropin.ParsedCommand{}, err
		}
		c.ApplyLogging = nil // it is the process's
		return dropin.ParsedCommand{Config: &c.Config, Warnings: c.Warnings, Run: c.Run}, nil
	}
	testkit.Main(m)
}
