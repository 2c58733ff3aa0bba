package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testleak"
)

func TestMain(m *testing.M) { testleak.Main(m) }

const cluster = `
apiVersion: v1
kind: Service
metadata: {namespace: default, name: web}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ipFamilies: [IPv4], ports: [{name: http, port: 80, protocol: TCP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: %d, protocol: TCP}]
endpoints: [{addresses: [127.0.0.1], conditions: {ready: true}}]
`

// End to end: from objects in a file to a connection to the port that the table names.
func TestServicesOnALaptop(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = io.WriteString(c, "hello")
			_ = c.Close()
		}
	}()
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	objects := fmt.Sprintf(cluster, l.Addr().(*net.TCPAddr).Port)
	require.NoError(t, os.WriteFile(file, []byte(objects), 0o600))

	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, []string{"--file", file, "--listen", "localhost"}, w)
		_ = w.Close()
		ended <- err
	}()
	row := regexp.MustCompile(`default/web:http/TCP +10\.96\.0\.10:80/TCP +(127\.0\.0\.1:\d+)`)
	var text []byte
	for !row.Match(text) {
		b := make([]byte, 4096)
		n, err := r.Read(b)
		require.NoError(t, err, "%s", text)
		text = append(text, b[:n]...)
	}
	go func() { _, _ = io.Copy(io.Discard, r) }()
	c, err := net.Dial("tcp", string(row.FindSubmatch(text)[1]))
	require.NoError(t, err)
	got, err := io.ReadAll(c)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(got))
	require.NoError(t, c.Close())
	cancel()
	require.NoError(t, <-ended)
}

func TestWrongFlags(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--listen", "everywhere"}, `--listen "everywhere": must be localhost, anyip or given`},
		{[]string{"--keep-source"}, "clients have the address 127.0.0.1"},
		{[]string{"x"}, `unexpected argument "x"`},
		{nil, "one of --file and --kubeconfig is required"},
	} {
		assert.ErrorContains(t, run(t.Context(), tc.args, io.Discard), tc.want)
	}
}
