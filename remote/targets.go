package remote

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
)

const (
	unixTarget = "unix://"
	dnsTarget  = "dns://"
	fileTarget = "file://"
)

// readTargets is how often, on average, files with targets are read while the feed is connected. Each client waits
// between half and one and a half times as long, so that not all leave a server at once when it is removed from their
// files.
const readTargets = 10 * time.Second

// checkTargets returns what is wrong with targets.
func (o *Options) checkTargets(targets []string, files bool) error {
	var errs []error
	tcp := false
	for _, target := range targets {
		var path string
		scheme, rest, found := strings.Cut(target, "://")
		switch scheme += "://"; {
		case found && scheme == unixTarget:
			path = rest
		case found && scheme == fileTarget && files:
			path = rest
		case found && scheme == dnsTarget:
			tcp = true
			_, name, _ := strings.Cut(rest, "/")
			if host, port, err := net.SplitHostPort(name); err != nil || host == "" || port == "" {
				errs = append(errs, fmt.Errorf("target %q is not dns:///NAME:PORT or dns://SERVER/NAME:PORT", target))
			}
			continue
		default:
			tcp = true
			host, _, err := net.SplitHostPort(target)
			if err != nil {
				errs = append(errs, fmt.Errorf("target %q: %w", target, err))
			} else if _, err := netip.ParseAddr(host); err != nil {
				errs = append(errs, fmt.Errorf("target %q is not ADDRESS:PORT; names need dns:///, because resolving them"+
					" may need the services that this node programs", target))
			}
			continue
		}
		if !strings.HasPrefix(path, "/") {
			errs = append(errs, fmt.Errorf("target %q: the path has to be absolute", target))
		}
	}
	if tcp && !o.hasTLS() && !o.Insecure {
		errs = append(errs, errors.New("neither TLS nor Insecure is set"))
	}
	return errors.Join(errs...)
}

// hasFiles reports whether there are targets that name files.
func (o *Options) hasFiles() bool {
	return slices.ContainsFunc(o.Targets, func(t string) bool { return strings.HasPrefix(t, fileTarget) })
}

// targetsNow returns the targets, including those in files.
func (o *Options) targetsNow() (all []string, err error) {
	for _, target := range o.Targets {
		path, isFile := strings.CutPrefix(target, fileTarget)
		if !isFile {
			all = append(all, target)
			continue
		}
		more, err := targetsIn(path)
		if err == nil {
			err = o.checkTargets(more, false)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, more...)
	}
	slices.Sort(all)
	if all = slices.Compact(all); len(all) == 0 {
		return nil, errors.New("no targets")
	}
	return all, nil
}

// maxTargets is the maximum size in bytes of a file with targets.
const maxTargets = 1 << 20

// targetsIn returns the targets in a file, one per line, without comments, which begin with #; or those in the files of
// a directory, except hidden files, such as the links of a mounted ConfigMap.
func targetsIn(path string) (all []string, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		if info.Size() > maxTargets {
			return nil, fmt.Errorf("has %d bytes, more than %d", info.Size(), maxTargets)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(content)) {
			line, _, _ = strings.Cut(line, "#")
			if line = strings.TrimSpace(line); line != "" {
				all = append(all, line)
			}
		}
		return all, nil
	}
	entries, err := os.ReadDir(path)
	for _, e := range entries {
		name := filepath.Join(path, e.Name())
		info, statErr := os.Stat(name)
		if strings.HasPrefix(e.Name(), ".") || statErr == nil && info.IsDir() {
			continue
		}
		more, readErr := targetsIn(name)
		all, err = append(all, more...), errors.Join(err, readErr)
	}
	return all, err
}

// targetList is the list of targets of a dialer.
type targetList struct {
	known   []string // sorted
	order   []string // known, in random order
	next    int      // in order
	problem string   // the last logged error about the files
}

// pick reads the files again and returns the next target. With any, it may be the previous one, so that clients spread
// over the servers. While a file is invalid, the previous targets are used.
func (d *dialer) pick(any bool) (string, error) {
	l := &d.targets
	if err := d.readTargets(); err != nil && len(l.known) == 0 {
		return "", err
	}
	if any {
		l.next = rand.N(len(l.order))
	}
	l.next++
	return l.order[l.next%len(l.order)], nil
}

// readTargets brings the targets up to date.
func (d *dialer) readTargets() error {
	l := &d.targets
	now, err := d.client.opts.targetsNow()
	if err != nil {
		if l.problem != err.Error() {
			l.problem = err.Error()
			d.log.Error(err, "Cannot read the targets; keeping the previous ones", "targets", l.known)
		}
		return err
	}
	l.problem = ""
	if !slices.Equal(now, l.known) {
		l.known, l.order = now, slices.Clone(now)
		rand.Shuffle(len(now), func(i, j int) { l.order[i], l.order[j] = l.order[j], l.order[i] })
	}
	return nil
}

// stillTarget returns an error if a target is no longer listed.
func (d *dialer) stillTarget(target string) error {
	_ = d.readTargets() // it logs the error
	if _, is := slices.BinarySearch(d.targets.known, target); !is {
		return errors.New("it is no longer a target")
	}
	return nil
}

// resolution returns how gRPC is to resolve a target. The addresses of a name are tried in random order.
func resolution(target string) (string, []grpc.DialOption) {
	switch {
	case strings.HasPrefix(target, unixTarget):
		return target, nil
	case strings.HasPrefix(target, dnsTarget):
		return target, []grpc.DialOption{grpc.WithDefaultServiceConfig(
			`{"loadBalancingConfig": [{"pick_first": {"shuffleAddressList": true}}]}`)}
	}
	return "passthrough:///" + target, nil
}
