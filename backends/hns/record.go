package hns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/klog/v2"

	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/hns/dataplane"
)

// record is the file with the frontends of the backend's load balancers. A line is a sign and a frontend: "+ IPv4
// 10.96.0.10 80 TCP" is written before a load balancer is created, the same with "-" after it has been deleted. So
// there is no load balancer of the backend without a line, whenever the process dies.
type record struct {
	path   string
	keys   map[dp.Key]bool
	lines  int  // in the file
	loaded bool // from the file
}

// mustRewrite is a number of lines at which the file is rewritten before anything is appended.
const mustRewrite = 1 << 30

func newRecord(path string) *record { return &record{path: path, keys: map[dp.Key]bool{}} }

// load reads the file, once. A last line without an end is from a process that died while it wrote: nothing was
// created. Damaged lines, as after a loss of power, are skipped and dropped: their load balancers count as those of
// others until a service has their address and port.
func (r *record) load(ctx context.Context) error {
	if r.loaded || r.path == "" {
		return nil
	}
	text, err := os.ReadFile(r.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("load-balancer record: %w", err)
	}
	keys := map[dp.Key]bool{}
	lines, damaged, cut := 0, 0, false
	for line := range strings.Lines(string(text)) {
		lines++
		line, whole := strings.CutSuffix(line, "\n")
		if !whole {
			cut = true
			continue
		}
		sign, rest, _ := strings.Cut(line, " ")
		key, err := dp.ParseKey(rest)
		if err != nil || sign != "+" && sign != "-" {
			damaged++
			continue
		}
		if keys[key] = true; sign == "-" {
			delete(keys, key)
		}
	}
	r.keys, r.lines, r.loaded = keys, lines, true
	if damaged > 0 {
		klog.FromContext(ctx).Error(nil, "Skipping damaged lines of the load-balancer record", "file", r.path,
			"damaged", damaged, "lines", lines)
	}
	if (damaged > 0 || cut) && r.rewrite(nil, nil) != nil {
		r.lines = mustRewrite // before anything is appended, which reports what is wrong
	}
	return nil
}

func (r *record) has(key dp.Key) bool { return r.keys[key] }

// change notes that load balancers are about to be created, or have been deleted. Its cost follows the change: the file
// is rewritten only when most of its lines are obsolete.
func (r *record) change(created, deleted []dp.Key) error {
	var b strings.Builder
	lines := 0
	note := func(sign string, keys []dp.Key, known bool) {
		for _, key := range keys {
			if r.keys[key] == known {
				fmt.Fprintf(&b, "%s %s\n", sign, key.Text())
				lines++
			}
		}
	}
	note("+", created, false)
	note("-", deleted, true)
	if lines == 0 {
		return nil
	}
	if err := r.append(b.String(), lines, created, deleted); err != nil {
		return fmt.Errorf("load-balancer record: %w", err)
	}
	follow(r.keys, created, deleted)
	return nil
}

// follow makes a change to the keys of a record.
func follow(keys map[dp.Key]bool, created, deleted []dp.Key) {
	for _, key := range created {
		keys[key] = true
	}
	for _, key := range deleted {
		delete(keys, key)
	}
}

func (r *record) append(text string, lines int, created, deleted []dp.Key) error {
	if r.path == "" {
		return nil
	}
	if r.lines+lines > 2*len(r.keys)+1000 {
		return r.rewrite(created, deleted)
	}
	file, err := os.OpenFile(r.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	if _, err := file.WriteString(text); err != nil {
		r.lines = mustRewrite // it may end in half a line
		return errors.Join(err, file.Close())
	}
	r.lines += lines
	return file.Close()
}

// rewrite replaces the file with one without obsolete lines.
func (r *record) rewrite(created, deleted []dp.Key) error {
	next := maps.Clone(r.keys)
	follow(next, created, deleted)
	var b strings.Builder
	for key := range next {
		fmt.Fprintf(&b, "+ %s\n", key.Text())
	}
	temporary := r.path + ".new"
	if err := writeSynced(temporary, b.String()); err != nil {
		return err
	}
	if err := os.Rename(temporary, r.path); err != nil {
		return err
	}
	syncDirectory(filepath.Dir(r.path))
	r.lines = len(next)
	return nil
}

// writeSynced writes a file that is complete after a loss of power.
func writeSynced(path, text string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = file.WriteString(text); err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// syncDirectory makes a renamed file last, where the platform can: Windows cannot. Without it the old file may be back
// after a loss of power, which is as good.
func syncDirectory(path string) {
	if d, err := os.Open(path); err == nil {
		_ = d.Sync()
		_ = d.Close()
	}
}
