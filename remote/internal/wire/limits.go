package wire

import "strings"

// Limits of what is sent.
const (
	// Window is the size of the flow-control window in bytes. It is fixed, because measuring it doubles the CPU time.
	Window = 64 << 10
	// MaxName is the maximum length of names in bytes: that of Node names in Kubernetes.
	MaxName = 253
	// MaxTriggers bounds the trigger times in a batch. The first ones are a good enough sample.
	MaxTriggers = 100
	// MaxErrorText limits what is kept of a client's error, and errors to a client that quote it.
	MaxErrorText = 1000
)

// FirstOf returns the beginning of a text, without keeping the rest in memory.
func FirstOf(text string) string {
	return strings.ToValidUTF8(strings.Clone(text[:min(len(text), MaxErrorText)]), "")
}
