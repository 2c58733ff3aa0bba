package v1alpha2

import (
	"cmp"
	"net"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	netutils "k8s.io/utils/net"
	"k8s.io/utils/ptr"
)

const (
	// defaultHealthzPort is the port of healthzBindAddress, if that has none.
	defaultHealthzPort = 10256
	// defaultMetricsPort is the port of metricsBindAddress, if that has none.
	defaultMetricsPort = 10249
)

// Default returns a configuration of defaults only.
func Default() *KubeProxyConfiguration {
	c := &KubeProxyConfiguration{}
	SetDefaults(c)
	return c
}

// SetDefaults gives every field that is not set its default. It sets apiVersion and kind, too.
func SetDefaults(c *KubeProxyConfiguration) {
	c.TypeMeta = metav1.TypeMeta{APIVersion: APIVersion, Kind: Kind}

	firstNodeIP := ""
	if len(c.NodeIPOverride) > 0 {
		firstNodeIP = c.NodeIPOverride[0]
	}
	c.HealthzBindAddress, c.MetricsBindAddress = BindAddresses(firstNodeIP, c.HealthzBindAddress, c.MetricsBindAddress)
	c.BindAddressHardFail = cmp.Or(c.BindAddressHardFail, ptr.To(true))
	c.ConfigHardFail = cmp.Or(c.ConfigHardFail, ptr.To(true))

	c.IPTables.MasqueradeBit = cmp.Or(c.IPTables.MasqueradeBit, ptr.To[int32](14))
	c.IPTables.LocalhostNodePorts = cmp.Or(c.IPTables.LocalhostNodePorts, ptr.To(false))
	c.IPVS.MasqueradeBit = cmp.Or(c.IPVS.MasqueradeBit, ptr.To[int32](14))
	c.NFTables.MasqueradeBit = cmp.Or(c.NFTables.MasqueradeBit, ptr.To[int32](14))

	c.Linux.OOMScoreAdj = cmp.Or(c.Linux.OOMScoreAdj, ptr.To[int32](-999))
	conntrack := &c.Linux.Conntrack
	conntrack.MaxPerCore = cmp.Or(conntrack.MaxPerCore, ptr.To[int32](32*1024))
	conntrack.Min = cmp.Or(conntrack.Min, ptr.To[int32](128*1024))
	conntrack.TCPEstablishedTimeout = cmp.Or(conntrack.TCPEstablishedTimeout,
		ptr.To(metav1.Duration{Duration: 24 * time.Hour}))
	// If the client's socket stays half closed for longer than this, the kernel forgets the address translation before the
	// connection ends, and a new connection from the same port meets the server's end of the old one.
	conntrack.TCPCloseWaitTimeout = cmp.Or(conntrack.TCPCloseWaitTimeout, ptr.To(metav1.Duration{Duration: time.Hour}))

	c.SyncPeriod.Duration = cmp.Or(c.SyncPeriod.Duration, 30*time.Second)
	c.ConfigSyncPeriod.Duration = cmp.Or(c.ConfigSyncPeriod.Duration, 15*time.Minute)

	c.ClientConnection.ContentType = cmp.Or(c.ClientConnection.ContentType, "application/vnd.kubernetes.protobuf")
	c.ClientConnection.QPS = cmp.Or(c.ClientConnection.QPS, 5)
	c.ClientConnection.Burst = cmp.Or(c.ClientConnection.Burst, 10)
	logsapi.SetRecommendedLoggingConfiguration(&c.Logging)
}

// BindAddresses returns the addresses where /healthz and metrics are served. It adds the default port to an address
// without one, and replaces an empty address with the default, which is IPv6 if nodeIP is.
func BindAddresses(nodeIP, healthz, metrics string) (healthzAddress, metricsAddress string) {
	all, loopback := "0.0.0.0", "127.0.0.1"
	if netutils.IsIPv6String(nodeIP) {
		all, loopback = "::", "::1"
	}
	return withPort(cmp.Or(healthz, all), defaultHealthzPort), withPort(cmp.Or(metrics, loopback), defaultMetricsPort)
}

// withPort adds a port to an IP address, and leaves anything else to validation.
func withPort(address string, port int) string {
	if netutils.ParseIPSloppy(address) == nil {
		return address
	}
	return net.JoinHostPort(address, strconv.Itoa(port))
}
