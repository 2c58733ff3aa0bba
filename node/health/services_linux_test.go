package health

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// By default the sockets are the kernel's, and the two families do not disturb each other.
func TestRealSockets(t *testing.T) {
	testkit.EnterNamespace(t) // so that the port is free, and there is IPv6
	lo, err := netlink.LinkByName("lo")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetUp(lo))
	const port = 32000
	var warned []string
	events := eventFunc(func(note string) { warned = append(warned, note) })
	s := NewServices(nil, ServicesOptions{Events: events})
	defer s.Close()
	s.SetService(service("web", port, 1, 0))
	require.NoError(t, s.Sync(t.Context()))
	require.Empty(t, warned)
	for address, code := range map[string]int{"127.0.0.1": 200, "[::1]": 503} {
		require.Equal(t, code, statusAt(t, fmt.Sprintf("%s:%d", address, port)), address)
	}

	s.SetService(service("web", port, 1, -1))
	require.NoError(t, s.Sync(t.Context()))
	require.Equal(t, 200, statusAt(t, fmt.Sprintf("[::1]:%d", port)), "of a service of the other family")

	other := NewServices(nil, ServicesOptions{Events: events})
	defer other.Close()
	other.SetService(service("web", port, 1, -1))
	require.NoError(t, other.Sync(t.Context()))
	require.Len(t, warned, 1, "the port is taken")
}

// statusAt asks for the status code at an address, on the thread that it is called on: an http.Client takes others.
func statusAt(t *testing.T, address string) int {
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/", nil)
	require.NoError(t, err)
	request.Close = true
	require.NoError(t, request.Write(conn))
	response, err := http.ReadResponse(bufio.NewReader(conn), request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	return response.StatusCode
}

type eventFunc func(note string)

func (f eventFunc) ServiceWarning(_ model.ServiceName, _, _, note string) { f(note) }
