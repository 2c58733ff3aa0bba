package preflight

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/kube-proxy-lib/dropin"
	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/internal/program/source"
)

// daemonSet is the DaemonSet of the cluster's kube-proxy.
type daemonSet struct {
	client    kubernetes.Interface
	pod       corev1.PodSpec
	container corev1.Container
	env       environment
}

// fromDaemonSet returns the configuration from the arguments of the cluster's kube-proxy, and from the file that they
// name.
func fromDaemonSet(ctx context.Context, cluster *source.Cluster) (dropin.Config, []config.Warning, error) {
	client, err := newClient("daemonset", cluster)
	if err != nil {
		return dropin.Config{}, nil, err
	}
	object, err := client.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(ctx, proxyName, metav1.GetOptions{})
	if err != nil {
		return dropin.Config{}, nil, err
	}
	c, warnings, err := (&daemonSet{client: client, pod: object.Spec.Template.Spec}).configuration(ctx)
	if err != nil {
		return c, nil, fmt.Errorf("DaemonSet kube-system/kube-proxy: %w", err)
	}
	return c, warnings, nil
}

func (d *daemonSet) configuration(ctx context.Context) (dropin.Config, []config.Warning, error) {
	if len(d.pod.Containers) == 0 {
		return dropin.Config{}, nil, errors.New("it has no containers")
	}
	d.container = containerOfProxy(d.pod.Containers)
	if err := d.readVariables(ctx); err != nil {
		return dropin.Config{}, nil, err
	}
	args, err := d.arguments()
	if err != nil {
		return dropin.Config{}, nil, err
	}
	const flag = "--config"
	for i := 0; i < len(args); i++ {
		if args[i] == flag && i+1 < len(args) {
			args = slices.Replace(args, i, i+2, flag+"="+args[i+1])
		}
		file, ok := strings.CutPrefix(args[i], flag+"=")
		if !ok {
			continue
		}
		text, err := d.mounted(ctx, file)
		if err != nil {
			return dropin.Config{}, nil, fmt.Errorf("%s: %w", args[i], err)
		}
		dir, err := os.MkdirTemp("", "preflight-")
		if err != nil {
			return dropin.Config{}, nil, err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		copied := filepath.Join(dir, path.Base(file))
		if err := os.WriteFile(copied, text, 0o600); err != nil {
			return dropin.Config{}, nil, err
		}
		args[i] = flag + "=" + copied
	}
	return fromArguments(args)
}

// containerOfProxy returns the container of the proxy: the one with its name, or else the one that runs it. Helpers may
// name it as well, for example its log.
func containerOfProxy(all []corev1.Container) corev1.Container {
	words := func(c corev1.Container) []string { return slices.Concat(c.Command, c.Args) }
	for _, is := range []func(corev1.Container) bool{
		func(c corev1.Container) bool { return c.Name == proxyName },
		func(c corev1.Container) bool { return slices.ContainsFunc(words(c), isProgram) },
		func(c corev1.Container) bool { return strings.Contains(strings.Join(words(c), " "), proxyName) },
	} {
		if i := slices.IndexFunc(all, is); i >= 0 {
			return all[i]
		}
	}
	return all[0]
}

// arguments returns the arguments of the proxy in the container.
func (d *daemonSet) arguments() ([]string, error) {
	words := slices.Concat(d.container.Command, d.container.Args)
	for i, word := range words {
		var err error
		if words[i], err = d.env.replace(word); err != nil {
			return nil, err
		}
	}
	if script, ok := shellScript(words); ok {
		return fromScript(script, d.env)
	}
	if args, ok := afterProgram(words); ok {
		return args, nil
	}
	isFlag := func(word string) bool { return strings.HasPrefix(word, "-") }
	if len(d.container.Command) > 0 && path.Ext(words[0]) == "" && len(words) > 1 && isFlag(words[1]) {
		return words[1:], nil // a program of another name
	}
	if len(d.container.Command) == 0 && len(words) > 0 && isFlag(words[0]) {
		return words, nil // of the image's program
	}
	return nil, fmt.Errorf("its command %q does not tell the arguments of %s: give the flags or the configuration file "+
		"to --from", words, proxyName)
}

// afterProgram returns the words after the program's name, which may be the argument of a wrapper that starts it, or
// false if there is no such name.
func afterProgram(words []string) ([]string, bool) {
	for i, word := range words {
		if isProgram(word) {
			return words[i+1:], true
		}
		if path.Base(word) == "hyperkube" && i+1 < len(words) && words[i+1] == "proxy" {
			return words[i+2:], true
		}
	}
	return nil, false
}

// isProgram reports whether an argument is the path of the proxy's program, such as /usr/local/bin/kube-proxy or
// kube-proxy-amd64, and not a script or a file of it.
func isProgram(word string) bool {
	name, ok := strings.CutPrefix(path.Base(word), proxyName)
	return ok && !strings.HasPrefix(word, "-") && (name == "" || name[0] == '-') && !strings.Contains(name, ".")
}

// readVariables reads the variables of the container.
func (d *daemonSet) readVariables(ctx context.Context) error {
	d.env = environment{values: map[string]string{}, unknown: map[string]string{}}
	for _, from := range d.container.EnvFrom {
		if from.ConfigMapRef == nil {
			for name := range d.env.values {
				d.env.unknown[name] = "a Secret may set it"
			}
			d.env.secret = true
			continue
		}
		m, err := d.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, from.ConfigMapRef.Name,
			metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("its variables: %w", err)
		}
		for key, value := range m.Data {
			d.env.values[from.Prefix+key] = value
			delete(d.env.unknown, from.Prefix+key)
		}
	}
	for _, v := range d.container.Env {
		value, err := d.variable(ctx, v)
		delete(d.env.values, v.Name)
		delete(d.env.unknown, v.Name)
		if err != nil {
			d.env.unknown[v.Name] = err.Error()
			continue
		}
		d.env.values[v.Name] = value
	}
	return nil
}

// variable returns the value of a variable.
func (d *daemonSet) variable(ctx context.Context, v corev1.EnvVar) (string, error) {
	switch from := v.ValueFrom; {
	case from == nil:
		return d.env.replace(v.Value)
	case from.ConfigMapKeyRef != nil:
		text, err := readConfigMap(ctx, d.client, from.ConfigMapKeyRef.Name, from.ConfigMapKeyRef.Key)
		return string(text), err
	case from.FieldRef != nil:
		switch from.FieldRef.FieldPath {
		case "spec.nodeName":
			return "node", nil // flags of preflight name the nodes
		case "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs":
			return "", nil // the node's own addresses, which are also the default of --bind-address
		}
		return "", fmt.Errorf("it is the pod's %s", from.FieldRef.FieldPath)
	}
	return "", errors.New("it is neither in the DaemonSet nor in a ConfigMap")
}

// mounted returns a file that the container mounts from a ConfigMap.
func (d *daemonSet) mounted(ctx context.Context, file string) ([]byte, error) {
	for _, mount := range d.container.VolumeMounts {
		at, ok := strings.CutPrefix(file, strings.TrimSuffix(mount.MountPath, "/")+"/")
		if mount.SubPath != "" && file == mount.MountPath {
			at, ok = mount.SubPath, true
		} else if ok {
			at = path.Join(mount.SubPath, at)
		}
		if !ok {
			continue
		}
		for _, v := range d.pod.Volumes {
			if v.Name != mount.Name {
				continue
			}
			if v.ConfigMap != nil {
				return readConfigMap(ctx, d.client, v.ConfigMap.Name, keyOf(at, v.ConfigMap.Items))
			}
			if v.Projected != nil {
				return d.projected(ctx, at, v.Projected.Sources)
			}
		}
	}
	return nil, notInConfigMap()
}

func notInConfigMap() error {
	return errors.New("it is not in a ConfigMap: copy it from a node, and give its path to --from")
}

// projected returns a file of a projected volume.
func (d *daemonSet) projected(ctx context.Context, file string, sources []corev1.VolumeProjection) ([]byte, error) {
	err := notInConfigMap()
	for _, s := range sources {
		if s.ConfigMap == nil {
			continue
		}
		text, failed := readConfigMap(ctx, d.client, s.ConfigMap.Name, keyOf(file, s.ConfigMap.Items))
		if failed == nil {
			return text, nil
		}
		err = failed
	}
	return nil, err
}

// keyOf returns the key of a ConfigMap that a file of a volume has.
func keyOf(file string, items []corev1.KeyToPath) string {
	for _, item := range items {
		if item.Path == file {
			return item.Key
		}
	}
	return file
}
