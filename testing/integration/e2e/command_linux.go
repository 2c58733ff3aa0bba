package e2e

import (
	"encoding/json"
	"fmt"
)

// Child runs the function of a child process, if this process is one that another process of this program has started,
// and reports whether it is.
func Child(args []string) (bool, error) {
	if len(args) != 3 {
		return false, nil
	}
	switch args[1] {
	case machineCommand:
		var o Options
		if err := json.Unmarshal([]byte(args[2]), &o); err != nil {
			return true, fmt.Errorf("options: %w", err)
		}
		return true, runMachine(o)
	case nodeCommand:
		return true, runNode(args[2])
	}
	return false, nil
}
