// Package evidence builds the failures of reports: a flow's result, the outcome that the oracle expects, and the
// objects of the cluster as YAML for kubectl apply.
package evidence
