// Package wire is what a node and a brain have in common: how the model's values become the messages of remote/v1 and
// back, and the digests of what they mean.
package wire
