// Package command is kube-proxy's command line for package dropin: its flags with their names and defaults, its
// configuration file, and its other functions, such as --cleanup. A program that embeds kube-proxy calls it with
// kube-proxy's arguments:
//
//	c, err := command.Parse(args, os.Stdout)
//	if err != nil {
//		return err
//	}
//	return c.Run(ctx)
//
// Between the two calls the program may change [Command.Config], for example set a client or set OwnProcess to false,
// and disable the changes that Run makes to the process's logging. To use only the flags, pass Config to [dropin.Run].
// A program without these flags does not need this package.
//
// The package reads the file of --config and the certificates that flags name, and prints the output of --version and
// --help. It does not read os.Args, does not exit, and installs no signal handlers.
package command

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"

	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/dropin"
	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/internal/program/buildinfo"
)

// Command is a command line of kube-proxy.
type Command struct {
	// Config results from the flags and the configuration file. OwnProcess is true.
	Config dropin.Config
	// Warnings concern flags and fields. Run logs them.
	Warnings []config.Warning
	// ApplyLogging applies the logging section of the configuration to the process. Nil leaves logging unchanged. Parse
	// sets it to ValidateAndApply of k8s.io/component-base/logs/api/v1, which accepts one call per process.
	ApplyLogging func(*logsapi.LoggingConfiguration, featuregate.FeatureGate) error

	flags *flags
	out   io.Writer
	// asService runs a function as a Windows service until the service is stopped.
	asService func(ctx context.Context, run func(context.Context) error) error
}

// Parse parses a command line, without the program's name, and reads the files that it names. Like kube-proxy, it
// accepts underscores for dashes in flag names. For --help it writes the usage to out and returns [pflag.ErrHelp]; for
// --version, Run writes to out. Errors name the flag, or the file and its field.
func Parse(args []string, out io.Writer) (*Command, error) {
	f, err := parseFlags(args, out)
	if err != nil {
		return nil, err
	}
	c := &Command{flags: f, out: out, ApplyLogging: logsapi.ValidateAndApply, asService: runAsService}
	if f.version.String() != "false" {
		return c, nil // whatever the other flags say
	}
	c.Config, c.Warnings, err = f.config()
	return c, err
}

// Run does what the flags request: usually [dropin.Run]; otherwise it prints the version, writes the configuration,
// cleans up or sets kernel parameters, and returns. With --windows-service it returns when the service is stopped.
func (c *Command) Run(ctx context.Context) error {
	f := c.flags
	if f.version.String() != "false" {
		return printVersion(c.out, f.version == versionRaw)
	}
	if err := c.logging(); err != nil {
		return fmt.Errorf("logging: %w", err)
	}
	logWarnings(ctx, c.Warnings)
	switch {
	case f.writeConfigTo != "":
		logWarnings(ctx, f.notInAFile(c.Config))
		return writeConfig(f.writeConfigTo, c.Config)
	case f.cleanup:
		return dropin.CleanUp(ctx, c.Config)
	case f.initOnly:
		return dropin.SetKernelParameters(ctx, c.Config)
	case c.Config.Configuration.Windows.RunAsService && runtime.GOOS == "windows":
		return c.asService(ctx, func(ctx context.Context) error { return dropin.Run(ctx, c.Config) })
	}
	return dropin.Run(ctx, c.Config)
}

// logging applies the logging section.
func (c *Command) logging() error {
	if c.ApplyLogging == nil {
		return nil
	}
	gates, err := config.Gates(c.Config.Configuration)
	if err != nil {
		return err
	}
	return c.ApplyLogging(&c.Config.Configuration.Logging, gates)
}

// writeConfig implements --write-config-to.
func writeConfig(path string, c dropin.Config) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("--write-config-to: %w", err)
	}
	defer func() { err = cmp.Or(err, file.Close()) }()
	return config.Write(file, c.Configuration)
}

func logWarnings(ctx context.Context, warnings []config.Warning) {
	for _, w := range warnings {
		klog.FromContext(ctx).Info("Configuration: " + w.String())
	}
}

func printVersion(out io.Writer, raw bool) error {
	version := buildinfo.Version()
	if info, ok := debug.ReadBuildInfo(); ok && raw {
		version = "\n" + info.String()
	}
	_, err := fmt.Fprintln(out, "kube-proxy-lib", version)
	return err
}
