// Package v1alpha2 is the second version of kube-proxy's configuration file, kubeproxy.config.k8s.io/v1alpha2, as
// KEP-784 designed it: what depends on the platform is in a section for the platform, and what all backends share is
// not in the section of one.
//
// [Default] returns a configuration with every default; [SetDefaults] fills in what a file left open. Package
// [sigs.k8s.io/kube-proxy-lib/dropin/config] reads, checks and writes files, those of version v1alpha1 too.
//
// The structs are plain values. They are the caller's: nothing in this module keeps or changes one that it is given,
// except SetDefaults.
package v1alpha2
