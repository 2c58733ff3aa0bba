package dataplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"

	"github.com/coreos/go-iptables/iptables"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// programs are the three of one family and variant.
type programs struct {
	family  model.Family
	variant Variant
	version [3]int
	// command is go-iptables' iptables. It knows versions and asks about single chains, at a process each. It has no
	// restore, its calls do not end with a context, and with versions before 1.4.20 it leaks the file of the lock each time
	// that it does not get it: so nothing else here is done with it.
	command *iptables.IPTables
	// path, save and restore are what to run.
	path, save, restore string
	// restoreLocks: iptables-restore waits for the lock, and has the option --wait for it.
	restoreLocks bool
}

// findPrograms looks in PATH for the programs of a variant, or, if it is empty, for those that have the plain name.
func findPrograms(ctx context.Context, f model.Family, v Variant, lockSeconds int) (*programs, error) {
	p, err := findNamed(ctx, f, v, lockSeconds)
	if err == nil || v == "" || !errors.Is(err, exec.ErrNotFound) {
		return p, err
	}
	// Where there is one variant only, or before 1.8, there is only the plain name.
	plain, plainErr := findNamed(ctx, f, "", lockSeconds)
	if plainErr != nil || plain.variant != v {
		return nil, err
	}
	return plain, nil
}

func findNamed(ctx context.Context, f model.Family, v Variant, lockSeconds int) (*programs, error) {
	name := "iptables"
	protocol := iptables.ProtocolIPv4
	if f == model.IPv6 {
		name, protocol = "ip6tables", iptables.ProtocolIPv6
	}
	if v != "" {
		name += "-" + string(v)
	}
	p := &programs{family: f}
	for _, x := range []struct {
		path   *string
		suffix string
	}{{&p.path, ""}, {&p.save, "-save"}, {&p.restore, "-restore"}} {
		path, err := exec.LookPath(name + x.suffix)
		if err != nil {
			return nil, fmt.Errorf("%v: %w", f, err)
		}
		*x.path = path
	}
	var err error
	if p.variant, err = variantOf(ctx, p.path); err != nil {
		return nil, err
	}
	if v != "" && p.variant != v {
		return nil, fmt.Errorf("%s says that it is iptables-%s", p.path, p.variant)
	}
	p.command, err = iptables.New(iptables.IPFamily(protocol), iptables.Path(p.path), iptables.Timeout(lockSeconds))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.path, err)
	}
	p.version[0], p.version[1], p.version[2] = p.command.GetIptablesVersion()
	p.restoreLocks = p.variant == NFT || p.atLeast(1, 6, 2) || saysVersion(ctx, p.restore)
	return p, nil
}

// saysVersion tells whether iptables-restore has the option --version. It got that and --wait at once, in 1.6.2, and some
// distributions have put both into older versions.
func saysVersion(ctx context.Context, path string) bool {
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	return err == nil && versionLine.Match(out)
}

var versionLine = regexp.MustCompile(`v\d+\.\d+\.\d+\S*(?: \((\w+)\))?`)

// variantOf runs "iptables --version": since 1.8 that says which variant it is, and go-iptables keeps that to itself.
func variantOf(ctx context.Context, path string) (Variant, error) {
	out, err := exec.CommandContext(ctx, path, "--version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w: %s", path, err, tidy(string(out)))
	}
	m := versionLine.FindSubmatch(out)
	switch {
	case m == nil:
		return "", fmt.Errorf("%s --version: not a version: %q", path, out)
	case string(m[1]) == "nf_tables":
		return NFT, nil
	default:
		return Legacy, nil
	}
}

func (p *programs) versionText() string {
	return fmt.Sprintf("%d.%d.%d", p.version[0], p.version[1], p.version[2])
}

func (p *programs) atLeast(major, minor, patch int) bool {
	for i, v := range [3]int{major, minor, patch} {
		if p.version[i] != v {
			return p.version[i] > v
		}
	}
	return true
}

// restoreArgs are the arguments of iptables-restore.
func (p *programs) restoreArgs(lockSeconds int) []string {
	args := []string{"--noflush"}
	if p.restoreLocks {
		args = append(args, "--wait", strconv.Itoa(lockSeconds))
	}
	return args
}

// Survey tells which variants of a family's iptables are installed, in the order nft, legacy, and what the node uses
// them for, in the network namespace of the calling thread. It loads no kernel module.
//
// New decides by it: a variant in which the kubelet has left a hint (the chains KUBE-IPTABLES-HINT or KUBE-KUBELET-CANARY
// in table mangle), else the one with more rules, else the plain "iptables". To find out whether there is anything to clean
// up in the other variant, ask for its Rules.
func Survey(ctx context.Context, f model.Family) ([]InUse, error) {
	var found []InUse
	var missing error
	for _, v := range []Variant{NFT, Legacy} {
		used, err := surveyVariant(ctx, f, v)
		if errors.Is(err, exec.ErrNotFound) {
			missing = err
			continue
		}
		if err != nil {
			return nil, err
		}
		found = append(found, used)
	}
	if len(found) == 0 {
		return nil, missing
	}
	return found, nil
}

// surveyVariant is Survey for one variant, whatever is wrong with the other.
func surveyVariant(ctx context.Context, f model.Family, v Variant) (InUse, error) {
	ns, err := currentNamespace()
	if err != nil {
		return InUse{}, err
	}
	defer func() { _ = ns.close() }()
	p, err := findPrograms(ctx, f, v, 1)
	if err != nil {
		return InUse{}, err
	}
	return p.inUse(ctx, ns)
}

// inUse reads all tables that there are. Without "-t" iptables-legacy-save leaves alone those that are not loaded.
func (p *programs) inUse(ctx context.Context, ns *namespace) (InUse, error) {
	used := InUse{Variant: p.variant}
	mangle := false
	err := run(ctx, ns, command{path: p.save, read: func(l []byte) error {
		switch {
		case bytes.HasPrefix(l, []byte("*")):
			mangle = string(l) == "*mangle"
		case bytes.HasPrefix(l, []byte("-A ")):
			used.Rules++
		case mangle && bytes.HasPrefix(l, []byte(":")):
			name, _, _ := strings.Cut(string(l[1:]), " ")
			used.Hint = used.Hint || name == "KUBE-IPTABLES-HINT" || name == "KUBE-KUBELET-CANARY"
		}
		return nil
	}})
	if err != nil {
		return used, fmt.Errorf("%v: %w", p.family, err)
	}
	return used, nil
}
