package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// cgroupMount is a hierarchy of cgroups.
type cgroupMount struct {
	at      string // for example "/sys/fs/cgroup/cpu"
	kind    string // "cgroup", "cgroup2"
	options string // for example "cpu,cpuacct"
}

// cgroupMounts returns the hierarchies that are mounted.
func cgroupMounts() ([]cgroupMount, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []cgroupMount
	for lines := bufio.NewScanner(f); lines.Scan(); {
		before, after, _ := strings.Cut(lines.Text(), " - ")
		fields, more := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(more) < 3 || !strings.HasPrefix(more[0], "cgroup") {
			continue
		}
		options := slices.DeleteFunc(strings.Split(more[2], ","), func(s string) bool { return s == "rw" || s == "ro" })
		all = append(all, cgroupMount{at: fields[4], kind: more[0], options: strings.Join(options, ",")})
	}
	if len(all) == 0 {
		return nil, errors.New("no cgroups are mounted")
	}
	return all, nil
}

// clusterWeight is how many times the processor time of an ordinary cgroup a cluster gets on a busy machine: it is
// several machines, and tests wait for seconds.
const clusterWeight = 10

// enterCgroups makes a cgroup below the cluster's in every hierarchy, and puts a process there; 0 is this one. Beside
// the cluster's other ones it gets weight times the processor time.
func (o Options) enterCgroups(name string, pid, weight int) error {
	all, err := cgroupMounts()
	if err != nil {
		return err
	}
	for _, m := range all {
		cluster := filepath.Join(m.at, o.cgroup())
		dir := filepath.Join(cluster, name)
		if err := makeCgroup(m, dir); err != nil {
			return err
		}
		if err := errors.Join(setWeight(cluster, clusterWeight), setWeight(dir, weight)); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, pid), 0o644); err != nil {
			return fmt.Errorf("enter a cgroup: %w", err)
		}
	}
	return nil
}

// setWeight gives a cgroup weight times the processor time of an ordinary one, in a hierarchy for that.
func setWeight(dir string, weight int) error {
	for _, file := range []struct {
		name          string // of version 1 and 2
		ordinary, max int
	}{{"cpu.shares", 1024, 262144}, {"cpu.weight", 100, 10000}} {
		f, err := os.OpenFile(filepath.Join(dir, file.name), os.O_WRONLY, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			_, err = f.Write(fmt.Append(nil, min(weight*file.ordinary, file.max)))
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			return fmt.Errorf("weight of a cgroup: %w", err)
		}
	}
	return nil
}

// makeCgroup creates a cgroup below the root of a hierarchy, and those between them.
func makeCgroup(m cgroupMount, dir string) error {
	if dir == m.at {
		return nil
	}
	parent := filepath.Dir(dir)
	if err := makeCgroup(m, parent); err != nil {
		return err
	}
	if m.kind == "cgroup2" { // children get what their parent enables
		controllers, err := os.ReadFile(filepath.Join(parent, "cgroup.controllers"))
		if err != nil {
			return err
		}
		for name := range strings.FieldsSeq(string(controllers)) {
			file := filepath.Join(parent, "cgroup.subtree_control")
			if err := os.WriteFile(file, []byte("+"+name), 0o644); err != nil {
				return fmt.Errorf("enable %s: %w", name, err)
			}
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make a cgroup: %w", err)
	}
	// In version 1 a cgroup without processors accepts no process.
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(parent, name))
		if err != nil || m.kind == "cgroup2" {
			continue // of another controller
		}
		if err := os.WriteFile(filepath.Join(dir, name), value, 0o644); err != nil {
			return fmt.Errorf("cgroup: %w", err)
		}
	}
	return nil
}

// programGroups match the files that move processes into the cgroups of the node's own programs: if there is only
// version 2, if there are both versions, and of version 1.
var programGroups = []string{"/sys/fs/cgroup/init/cgroup.procs", "/sys/fs/cgroup/unified/cgroup.procs",
	"/sys/fs/cgroup/[!iu]*/cgroup.procs"}

// mountCgroups mounts the hierarchies of a new cgroup namespace, whose roots are the node's cgroups.
func mountCgroups(at string, all []cgroupMount) error {
	if len(all) == 1 && all[0].kind == "cgroup2" {
		if err := mount("cgroup2", at, "cgroup2", 0, ""); err != nil {
			return err
		}
		// In version 2 a cgroup whose children get controllers cannot have processes.
		if err := os.MkdirAll(filepath.Join(at, "init"), 0o755); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(at, "init/cgroup.procs"), []byte("1"), 0o644)
	}
	if err := mount("tmpfs", at, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for _, m := range all {
		to := filepath.Join(at, filepath.Base(m.at))
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
		options := m.options
		if m.kind == "cgroup2" {
			options = ""
		}
		if err := mount(m.kind, to, m.kind, 0, options); err != nil {
			return err
		}
	}
	return nil
}

// removeCgroups removes the cgroups of a cluster that has ended.
func removeCgroups(name string) error {
	all, err := cgroupMounts()
	if err != nil {
		return err
	}
	for _, m := range all {
		var dirs []string
		err := filepath.WalkDir(filepath.Join(m.at, name), func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				dirs = append(dirs, path)
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cgroups: %w", err)
		}
		for _, dir := range slices.Backward(dirs) {
			if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove cgroup %s: %w", dir, err)
			}
		}
	}
	return nil
}
