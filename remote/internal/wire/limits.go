package wire

import "strings"

// Limits of what is sent.
const (
	// Window is the number of bytes under way to a client; a fixed one, because to measure for it doubles the CPU time.
	Window = 64 << 10
	// MaxName is how many bytes names may have: as many as Kubernetes allows for those of Nodes.
	MaxName = 253
	// MaxTriggers bounds the trigger times in a batch. The first ones are a good enough sample.
	MaxTriggers = 100
	// MaxErrorText bounds what is kept of a client's error, and what a client is told that quotes it.
	MaxErrorText = 1000
)

// FirstOf returns the beginning of a text, without keeping the rest in memory.
func FirstOf(text string) string {
	return strings.ToValidUTF8(strings.Clone(text[:min(len(text), MaxErrorText)]), "")
}
