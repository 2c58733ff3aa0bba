package config

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
)

// Warning is a problem in a configuration that does not prevent a start.
type Warning struct {
	// Field is the field's path, such as "linux.conntrack.min", in the version that was read. It is empty if the warning
	// concerns the whole file.
	Field string
	// Message describes the problem and how it is handled.
	Message string
}

// String returns the field, if any, and the message.
func (w Warning) String() string {
	if w.Field == "" {
		return w.Message
	}
	return w.Field + ": " + w.Message
}

// Load reads a YAML or JSON configuration file of any version, and returns it in the newest version, with all defaults,
// and checked by [Check].
//
// A malformed file, an unknown version, or a value of a wrong type is an error. An unknown or duplicate field is always
// a warning, whatever configHardFail says, so that a file for a newer program can be read. If values are invalid, Load
// returns both the warnings and the error.
func Load(data []byte) (*v1alpha2.KubeProxyConfiguration, []Warning, error) {
	doc, warnings, err := parse(data)
	if err != nil {
		return nil, nil, err
	}
	if doc.APIVersion == "" && doc.Kind == "" {
		return nil, nil, errors.New("malformed file: it has no apiVersion and kind")
	}
	if doc.Kind != v1alpha2.Kind {
		return nil, nil, fmt.Errorf("kind %q of apiVersion %q is not supported; want %s", doc.Kind,
			doc.APIVersion, v1alpha2.Kind)
	}

	var c *v1alpha2.KubeProxyConfiguration
	var more []Warning
	name := func(field string) string { return field } // the name in the file
	switch doc.APIVersion {
	case v1alpha2.APIVersion:
		if c, more, err = decode[v1alpha2.KubeProxyConfiguration](doc); err != nil {
			return nil, nil, err
		}
		v1alpha2.SetDefaults(c)
	case v1alpha1APIVersion:
		var old *v1alpha1.KubeProxyConfiguration
		if old, more, err = decode[v1alpha1.KubeProxyConfiguration](doc); err != nil {
			return nil, nil, err
		}
		name = func(field string) string { return v1alpha1Name(field, old.Mode) }
		var lost []Warning
		c, lost = FromV1alpha1(old)
		more = append(more, lost...)
	default:
		return nil, nil, fmt.Errorf("apiVersion %q is not supported; want %s or %s", doc.APIVersion,
			v1alpha1APIVersion, v1alpha2.APIVersion)
	}

	replaced, err := check(c, name)
	warnings = slices.Concat(warnings, more, replaced)
	if err != nil {
		return nil, warnings, err
	}
	return c, warnings, nil
}

// Write writes a configuration with all defaults as YAML, in the newest version.
func Write(w io.Writer, c *v1alpha2.KubeProxyConfiguration) error {
	if c == nil {
		return errors.New("no configuration to write")
	}
	c = c.DeepCopy()
	v1alpha2.SetDefaults(c)
	data, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	if _, err := w.Write(data); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}
