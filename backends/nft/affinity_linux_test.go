package nft_test

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/testns"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// A service whose clients fill its set goes on balancing, and its neighbour keeps its clients.
func TestAServiceWithMoreClientsThanItsSetHoldsGoesOnBalancing(t *testing.T) {
	nftProgram := need.Program(t, "nft")
	flows := backendtest.NewFlows(t, testns.Enter(t))
	r := newKernelRig(t, nft.Options{}, true)
	full := flows.Service()
	full.SessionAffinityTimeout = 3 * time.Hour
	neighbour := *full
	neighbour.Name.Name = "neighbour"
	neighbour.ClusterIPs = []netip.Addr{netip.MustParseAddr("10.96.255.2")}
	values := []any{backendtest.Node(), full, &neighbour}
	for i := range 4 {
		ep := *flows.Endpoint(1 + i)
		ep.Target = netip.AddrPortFrom(ep.Target.Addr(), 9090)
		answerWithName(t, ep.Target.String())
		other := ep
		other.Port.Service = neighbour.Name
		values = append(values, &ep, &other)
	}
	r.Set(values...)
	r.Sync()
	listed, err := exec.CommandContext(t.Context(), nftProgram, "list", "sets", "ip").CombinedOutput()
	require.NoError(t, err, "%s", listed)
	_, after, _ := strings.Cut(string(listed), "table ip kube-proxy-lib")
	var set string
	for definition := range strings.SplitSeq(after, "}\n") {
		if strings.Contains(definition, strconv.Quote(full.PortName(full.Ports[0]).String())) {
			set = strings.Fields(definition)[1]
		}
	}
	require.NotEmpty(t, set, "%s", listed)

	var b strings.Builder
	fmt.Fprintf(&b, "add element ip kube-proxy-lib %s {", set)
	for i := range 65535 {
		fmt.Fprintf(&b, "203.%d.%d.1 . 7 timeout 1h,\n", i>>8, i&255)
	}
	b.WriteString("}\n")
	fill := exec.CommandContext(t.Context(), nftProgram, "-f", "-")
	fill.Stdin = strings.NewReader(b.String())
	out, err := fill.CombinedOutput()
	require.NoError(t, err, "%s", out)

	seen := map[string]int{}
	for client := range 60 {
		seen[askedBy(t, client, 1, "10.96.255.1:80")]++
	}
	assert.Len(t, seen, 4, "all endpoints serve: %v", seen)
	for client := range 10 {
		first := askedBy(t, client, 2, "10.96.255.2:80")
		for again := range 6 {
			assert.Equal(t, first, askedBy(t, client, 3+again, "10.96.255.2:80"), "client %d", client)
		}
	}
}

// answerWithName answers with its own address.
func answerWithName(t *testing.T, at string) {
	c, err := net.ListenPacket("udp4", at)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	go func() {
		for buf := make([]byte, 16); ; {
			_, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteTo([]byte(at), from)
		}
	}()
}

// askedBy returns who answers a client.
func askedBy(t *testing.T, client, port int, to string) string {
	t.Helper()
	from := net.UDPAddr{IP: net.IPv4(10, 1, 2, byte(1+client)), Port: 10000 + port}
	c, err := (&net.Dialer{LocalAddr: &from}).Dial("udp4", to)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
	_, err = c.Write([]byte("?"))
	require.NoError(t, err)
	buf := make([]byte, 64)
	n, err := c.Read(buf)
	require.NoError(t, err)
	return string(buf[:n])
}
