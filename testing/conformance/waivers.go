package conformance

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// waivers counts what passed only because the factory lacks a feature, so that a result with deviations does not look
// like one without.
type waivers struct {
	mu    sync.Mutex
	count map[Feature]int
}

// add counts a deviation.
func (w *waivers) add(f Feature) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.count == nil {
		w.count = map[Feature]int{}
	}
	w.count[f]++
}

// String lists the features with the number of deviations, one to a line; "" if there were none.
func (w *waivers) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var lines []string
	for f, n := range w.count {
		lines = append(lines, fmt.Sprintf("%s: %d times", f, n))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
