//go:build !linux

package preflight

import "errors"

func loopbackConnections() (map[connection]int, error) {
	return nil, errors.New("tracked connections can be listed on Linux only")
}
