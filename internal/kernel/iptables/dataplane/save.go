package dataplane

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
)

// readSave calls each for every line of iptables-save, without its newline. The slice is valid only during the call.
func readSave(r io.Reader, each func(line []byte) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), math.MaxInt32)
	for lines.Scan() {
		if err := each(lines.Bytes()); err != nil {
			return err
		}
	}
	return lines.Err()
}

// parseSave parses the output of iptables-save into the result of Read.
func parseSave(r io.Reader, table Table, prefix string) (*State, error) {
	state := &State{Chains: map[string][]string{}}
	inTable := false
	var name string    // last one of the prefix: a chain's rules are contiguous, so this saves map accesses
	var rules []string // of that chain
	flush := func() {
		if len(rules) > 0 {
			state.Chains[name] = append(state.Chains[name], rules...)
		}
		rules = rules[:0]
	}
	err := readSave(r, func(l []byte) error {
		switch {
		case len(l) == 0 || l[0] == '#':
			// iptables-nft reports in this way that it cannot read a table.
			if class := classify(string(l)); class != nil {
				return fmt.Errorf("%w: %s", class, bytes.TrimLeft(l, "# "))
			}
		case l[0] == '*':
			inTable = string(l[1:]) == string(table)
		case !inTable:
		case string(l) == "COMMIT":
			flush()
			inTable = false
		case l[0] == ':':
			chain, _, _ := bytes.Cut(l[1:], []byte(" "))
			if bytes.HasPrefix(chain, []byte(prefix)) && !isBuiltin(chain) {
				state.Chains[string(chain)] = nil
			}
		case bytes.HasPrefix(l, []byte("-A ")):
			chain, rule, _ := bytes.Cut(l[3:], []byte(" "))
			switch {
			case isBuiltin(chain):
				if r := string(normalize(rule)); strings.HasPrefix(Target(r), prefix) {
					state.Jumps = append(state.Jumps, BuiltinRule{Chain: string(chain), Rule: r})
				}
			case bytes.HasPrefix(chain, []byte(prefix)):
				if string(chain) != name {
					flush()
					name = string(chain)
				}
				rules = append(rules, string(normalize(rule)))
			}
		default:
			return fmt.Errorf("iptables-save: cannot parse %q", l)
		}
		return nil
	})
	if err == nil && inTable {
		err = errors.New("iptables-save: no COMMIT at the end")
	}
	if err != nil {
		return nil, err
	}
	return state, nil
}

func isBuiltin(chain []byte) bool {
	switch string(chain) {
	case "PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING":
		return true
	}
	return false
}
