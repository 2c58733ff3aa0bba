// Package config reads, checks and writes the configuration file of kube-proxy, so that a program built on this library
// can replace kube-proxy and use its existing file.
//
// # Versions
//
// Files are of version kubeproxy.config.k8s.io/v1alpha1, with the types of module k8s.io/kube-proxy, or of v1alpha2,
// the version that KEP-784 designed, with the types of package [sigs.k8s.io/kube-proxy-lib/config/v1alpha2]. A program
// sees only the newest version: [Load] reads every version, and [Write] writes the newest. [FromV1alpha1] and
// [ToV1alpha1] convert; they keep the meaning, defaults included, and return warnings about what the other version
// cannot express. The table of old and new names is in docs/configuration.md.
//
// # Errors and warnings
//
//   - A file that is malformed, of an unknown version, or with a value of a wrong type is an error. All wrong values
//     are named at once.
//   - Unknown and duplicate fields are warnings.
//   - Values that [Validate] finds invalid are an error that names all of them, or, if configHardFail is false,
//     warnings; then the defaults are used in their place.
//
// Messages use the names that fields have in the file's version.
//
// # From the configuration to the library
//
// [DetectNodeIPs] determines the IP families and node IPs; [RunOptions], [StateOptions], [NodePortAddresses] and
// [MasqueradeMark] turn the configuration into options of the library and of a backend. [Gates] returns the feature
// gates, also for setting up logging.
//
// # What it never does
//
// The package reads no files, flags, environment or host state, logs nothing and has no state: functions depend only on
// their arguments. Except for Check and SetDefaultsV1alpha1, which say so, they do not change their arguments. They may
// be called concurrently.
package config
