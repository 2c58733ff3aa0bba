package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var (
	// ErrNoTable: the kernel does not have the table, because a module is missing.
	ErrNoTable = errors.New("the kernel does not have the table; is a module missing?")
	// ErrLocked: another program held the lock of iptables-legacy for too long. Trying again later helps.
	ErrLocked = errors.New("another program holds the xtables lock")
	// ErrUnusable: a program is installed, but trying it again does not help. It does not even tell its version, for
	// example because a library is missing or because it crashes, or it is too old, or of the other variant.
	ErrUnusable = errors.New("the program is installed, but cannot be used")
	// ErrIncompatible: one of iptables-nft's tables has a rule, added with nft, that iptables cannot print.
	ErrIncompatible = errors.New("the table contains rules that iptables cannot read")
)

// Missing permission is fs.ErrPermission, a missing program exec.ErrNotFound.

// classify returns the error that a program's messages indicate, or nil if they are unknown.
func classify(stderr string) error {
	has := func(texts ...string) bool {
		return slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(stderr, t) })
	}
	switch {
	case has("Permission denied", "Operation not permitted"):
		return fs.ErrPermission
	case has("do you need to insmod", "unable to initialize table"):
		return ErrNoTable
	case has("is incompatible, use 'nft' tool"):
		return ErrIncompatible
	case has("holding the xtables lock"):
		return ErrLocked
	}
	return nil
}

// explain adds a program's messages, and their meaning, to its error.
func explain(err error, stderr string) error {
	if class := classify(stderr); class != nil {
		err = fmt.Errorf("%w (%w)", class, err)
	}
	if said := tidy(stderr); said != "" {
		err = fmt.Errorf("%w: %s", err, said)
	}
	return err
}

// How the programs name a line, all seen with 1.8.9:
//
//	Error occurred at line: 3                          both, what user space refuses; nft: missing chains, at COMMIT
//	iptables-restore: line 4 failed                    legacy, -D and -X of what is not there; at COMMIT the kernel
//	iptables-nft-restore: line 3 failed: Bad rule ...  nft, -D and -X of what is not there
//	line 5: CHAIN_DEL failed (Device or resource busy): chain KPL-B    nft, what the kernel refuses
var (
	lineNumber   = regexp.MustCompile(`(?m)Error occurred at line: (\d+)|line (\d+) failed|^line (\d+): \S+ failed`)
	missingChain = regexp.MustCompile("Chain '([^']+)' does not exist|Couldn't load target `([^']+)'|" +
		"goto '([^']+)' is not a chain")
)

// lineOf returns the batch's line that the messages name, or the zero line.
func (b *Batch) lineOf(stderr string) line {
	m := lineNumber.FindStringSubmatch(stderr)
	if m == nil {
		return line{}
	}
	number, _ := strconv.Atoi(m[1] + m[2] + m[3])
	l := b.find(func(l line) bool { return l.number == number })
	if m := missingChain.FindStringSubmatch(stderr); m != nil && l.verb == "COMMIT" {
		// iptables-nft checks the targets of jumps at the end.
		jump := b.find(func(r line) bool {
			return r.table == l.table && r.rule != "" && Target(r.rule) == m[1]+m[2]+m[3]
		})
		if jump.number > 0 {
			return jump
		}
	}
	return l
}

// at records the failing line of the batch, if it is known.
func (e *RestoreError) at(b *Batch, l line) {
	if l.number > 0 {
		e.Table, e.Line, e.Text, e.Origin = b.Tables[l.table].Table, l.number, l.text(), l.origin
	}
}

// isMissing reports whether the messages say that a rule to delete does not exist, or that it jumps to a chain that
// does not exist, which means the same.
func isMissing(stderr string) bool {
	return strings.Contains(stderr, " failed") && !strings.Contains(stderr, "Error occurred") ||
		missingChain.MatchString(stderr)
}

// tidy returns the start of the messages, without empty lines and hints.
func tidy(stderr string) string {
	const most = 16 << 10
	var lines []string
	for l := range strings.Lines(stderr[:min(len(stderr), most)]) {
		l = strings.TrimSpace(l)
		if l != "" && !strings.HasPrefix(l, "Try `") && !strings.HasPrefix(l, "Another app is currently") {
			lines = append(lines, l)
		}
	}
	return strings.Join(lines, "; ")
}
