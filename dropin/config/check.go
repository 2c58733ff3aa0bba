package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
)

// Check validates a configuration with defaults. If configHardFail is true, it returns an error that joins all
// problems. Otherwise it replaces each invalid value with the default, removes invalid list elements, and returns a
// warning for each; the result is valid.
func Check(c *v1alpha2.KubeProxyConfiguration) ([]Warning, error) {
	return check(c, func(field string) string { return field })
}

// check is Check with the names of fields in the file.
func check(c *v1alpha2.KubeProxyConfiguration, name func(string) string) ([]Warning, error) {
	errs := Validate(c)
	if len(errs) == 0 {
		return nil, nil
	}
	if c.ConfigHardFail == nil || *c.ConfigHardFail {
		return nil, asError(errs, name)
	}
	var warnings []Warning
	// A default can activate another rule, such as that for clusterCIDRs after an invalid detectLocalMode.
	for range 3 {
		for _, err := range errs {
			instead := "using the default instead"
			if _, _, ok := listElement(err.Field); ok {
				instead = "ignoring it"
			}
			warnings = append(warnings, Warning{Field: name(err.Field), Message: err.ErrorBody() + "; " + instead})
		}
		unset(c, errs)
		if errs = Validate(c); len(errs) == 0 {
			return warnings, nil
		}
	}
	return warnings, asError(errs, name)
}

func asError(errs field.ErrorList, name func(string) string) error {
	var all []error
	for _, err := range errs {
		renamed := *err
		renamed.Field = name(err.Field)
		// In an older version two fields can have the same name.
		if !slices.ContainsFunc(all, func(other error) bool { return other.Error() == renamed.Error() }) {
			all = append(all, &renamed)
		}
	}
	return fmt.Errorf("invalid configuration: %w", errors.Join(all...))
}

// listElement splits the path of a list element, such as "nodePortAddresses[1]".
func listElement(path string) (list string, index int, ok bool) {
	list, rest, _ := strings.Cut(path, "[")
	index, err := strconv.Atoi(strings.TrimSuffix(rest, "]"))
	return list, index, err == nil
}

// unset removes the invalid fields and list elements from a configuration, and sets the defaults again.
func unset(c *v1alpha2.KubeProxyConfiguration, errs field.ErrorList) {
	content := fieldsOf(c)
	for _, err := range errs {
		path, index, isElement := listElement(err.Field)
		sections := strings.Split(path, ".")
		last := len(sections) - 1
		section := content
		for _, name := range sections[:last] {
			section, _ = section[name].(map[string]any)
		}
		name := sections[last]
		if !isElement {
			delete(section, name)
		} else if list, _ := section[name].([]any); index < len(list) {
			list[index] = nil // removed later, so that the other indexes stay valid
		}
	}
	dropMarked(content)
	*c = v1alpha2.KubeProxyConfiguration{}
	setFields(c, content)
	v1alpha2.SetDefaults(c)
}

// dropMarked removes nil elements from all lists, and then empty lists.
func dropMarked(section map[string]any) {
	for name, value := range section {
		switch v := value.(type) {
		case map[string]any:
			dropMarked(v)
		case []any:
			if v = slices.DeleteFunc(v, func(element any) bool { return element == nil }); len(v) > 0 {
				section[name] = v
			} else {
				delete(section, name)
			}
		}
	}
}
