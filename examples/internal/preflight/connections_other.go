//go:build !linux

package preflight

import "errors"

func loopbackConnections() (map[connection]int, error) {
	return nil, errors.New("only Linux tells which connections it tracks")
}
