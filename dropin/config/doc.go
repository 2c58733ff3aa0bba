// Package config reads, validates and writes kube-proxy's configuration file, so that a program built on this library
// can replace kube-proxy and use its file.
//
// # Versions
//
// Files have version kubeproxy.config.k8s.io/v1alpha1, with the types of module k8s.io/kube-proxy, or v1alpha2,
// designed in KEP-784, with the types of package [sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2]. A program sees
// only the newest version: [Load] reads every version, and [Write] writes the newest. [FromV1alpha1] and [ToV1alpha1]
// convert; they preserve the meaning, including defaults, and return warnings about what the other version cannot
// express. docs/configuration.md has the table of old and new names.
//
// # Errors and warnings
//
//   - A malformed file, an unknown version, or a value of a wrong type is an error. It names all wrong values.
//   - Unknown and duplicate fields are warnings.
//   - Values that [Validate] finds invalid are an error that names all of them. If configHardFail is false they are
//     warnings, and the defaults are used instead.
//
// Messages use the field names of the file's version.
//
// # From the configuration to the library
//
// [DetectNodeIPs] determines the IP families and node IPs; [RunOptions], [StateOptions], [NodePortAddresses] and
// [MasqueradeMark] convert the configuration to options of the library and of a backend. [Gates] returns the feature
// gates, also for setting up logging.
//
// # What it never does
//
// The package reads no files, flags, environment or host state, logs nothing and has no state: functions depend only on
// their arguments. They change no arguments, except for Check and SetDefaultsV1alpha1. They may be called concurrently.
package config
