package dataplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// programs are the three programs of one family and variant.
type programs struct {
	variant Variant
	version string // for example "1.8.9"
	// path, save and restore are the commands.
	path, save, restore string
}

// findPrograms searches PATH for the programs of a variant or, if v is empty, for the plain names.
func findPrograms(ctx context.Context, f model.Family, v Variant) (*programs, error) {
	p, err := findNamed(ctx, f, v)
	if err == nil || v == "" || !errors.Is(err, exec.ErrNotFound) {
		return p, err
	}
	// Before 1.8, and if only one variant is installed, only the plain name exists.
	plain, plainErr := findNamed(ctx, f, "")
	if errors.Is(plainErr, ErrUnusable) {
		return nil, plainErr
	}
	if plainErr != nil || plain.variant != v {
		return nil, err
	}
	return plain, nil
}

func findNamed(ctx context.Context, f model.Family, v Variant) (*programs, error) {
	name := "iptables"
	if f == model.IPv6 {
		name = "ip6tables"
	}
	if v != "" {
		name += "-" + string(v)
	}
	p := &programs{path: name, save: name + "-save", restore: name + "-restore"}
	for _, path := range []*string{&p.path, &p.save, &p.restore} {
		var err error
		if *path, err = exec.LookPath(*path); err != nil {
			return nil, fmt.Errorf("%v: %w", f, err)
		}
	}
	if err := p.askVersion(ctx); err != nil {
		return nil, fmt.Errorf("%s --version: %w", p.path, err)
	}
	if v != "" && p.variant != v {
		return nil, fmt.Errorf("%w: %s says that it is iptables-%s", ErrUnusable, p.path, p.variant)
	}
	return p, nil
}

var versionLine = regexp.MustCompile(`v(\d+)\.(\d+)\.(\d+)\S*(?: \((\w+)\))?`)

// askVersion determines the version and variant of the programs. Since 1.8 the version names the variant. Versions
// before 1.6.2 are rejected: their iptables-restore does not take the programs' lock, and they lack --random-fully.
func (p *programs) askVersion(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, p.path, "--version").CombinedOutput()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		if !isTemporary(err) {
			err = fmt.Errorf("%w (%w)", ErrUnusable, err)
		}
		if said := tidy(string(out)); said != "" {
			err = fmt.Errorf("%w: %s", err, said)
		}
		return err
	}
	m := versionLine.FindStringSubmatch(string(out))
	if m == nil {
		return fmt.Errorf("%w: not a version: %q", ErrUnusable, out)
	}
	p.version = strings.Join(m[1:4], ".")
	if p.variant = Legacy; m[4] == "nf_tables" {
		p.variant = NFT
	}
	version := make([]int, 3)
	_, _ = fmt.Sscanf(p.version, "%d.%d.%d", &version[0], &version[1], &version[2])
	if slices.Compare(version, []int{1, 6, 2}) < 0 {
		return fmt.Errorf("%w: iptables %s is too old: 1.6.2 or later is needed", ErrUnusable, p.version)
	}
	return nil
}

// isTemporary reports whether a program that did not tell its version may do so later: another process has ended it, as
// the kernel does when memory is short, or it could not be started for want of resources, or while it is being
// replaced. One that exits or crashes does the same again.
func isTemporary(err error) bool {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		status, ok := exit.Sys().(syscall.WaitStatus)
		return ok && status.Signaled() && slices.Contains([]syscall.Signal{
			unix.SIGKILL, unix.SIGTERM, unix.SIGINT, unix.SIGHUP}, status.Signal())
	}
	return slices.ContainsFunc([]error{unix.ENOMEM, unix.EAGAIN, unix.EMFILE, unix.ENFILE, unix.ETXTBSY},
		func(reason error) bool { return errors.Is(err, reason) })
}

// variantInUse returns the variant that the node uses in the calling thread's network namespace, or "". It loads no
// kernel module.
func variantInUse(ctx context.Context, f model.Family) (Variant, error) {
	var best inUse
	var missing []error
	for _, v := range []Variant{NFT, Legacy} {
		used, err := surveyVariant(ctx, f, v)
		switch {
		case errors.Is(err, exec.ErrNotFound), errors.Is(err, ErrUnusable):
			missing = append(missing, err)
		case err != nil:
			return "", err
		case used.hint && !best.hint || used.hint == best.hint && used.rules > best.rules:
			best = used
		}
	}
	if len(missing) == 2 {
		if errors.Is(missing[0], ErrUnusable) {
			return "", missing[0]
		}
		return "", missing[1]
	}
	return best.variant, nil
}

// surveyVariant reads all existing tables. Without "-t" iptables-legacy-save skips tables that are not loaded.
func surveyVariant(ctx context.Context, f model.Family, v Variant) (inUse, error) {
	p, err := findPrograms(ctx, f, v)
	if err != nil {
		return inUse{}, err
	}
	used := inUse{variant: p.variant}
	mangle := false
	_, err = run(ctx, nil, command{path: p.save, read: func(r io.Reader) error {
		return readSave(r, func(l []byte) error {
			switch {
			case bytes.HasPrefix(l, []byte("*")):
				mangle = string(l) == "*mangle"
			case bytes.HasPrefix(l, []byte("-A ")):
				used.rules++
			case mangle && bytes.HasPrefix(l, []byte(":")):
				name, _, _ := strings.Cut(string(l[1:]), " ")
				used.hint = used.hint || name == "KUBE-IPTABLES-HINT" || name == "KUBE-KUBELET-CANARY"
			}
			return nil
		})
	}})
	if err != nil {
		return used, fmt.Errorf("%v: %w", f, err)
	}
	return used, nil
}
