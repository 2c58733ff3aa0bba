// Package wire is shared by the node and the brain: it encodes the model's values as the messages of remote/v1, decodes
// them, and computes digests of their meaning.
package wire
