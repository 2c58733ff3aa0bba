package dataplane

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// eachBigTable calls bench for IPv4 with both variants and tables of several sizes.
func eachBigTable(b *testing.B, bench func(b *testing.B, ipt *IPTables)) {
	for _, v := range []Variant{NFT, Legacy} {
		needPrograms(b, model.IPv4, v)
		for _, rules := range []int{0, 50_000} {
			n := testkit.NewNamespace(b)
			ipt := newIPTables(b, n, Options{Variant: v})
			require.NoError(b, ipt.Restore(b.Context(), bigTable(rules)))
			b.Run(fmt.Sprintf("%s/rules=%d", v, rules), func(b *testing.B) {
				before, heap := children(), allocated()
				bench(b, ipt)
				b.ReportMetric(float64((children()-before).Microseconds())/1000/float64(b.N), "child-cpu-ms/op")
				b.ReportMetric(float64(allocated()-heap)/float64(b.N)/(1<<20), "alloc-MB/op")
			})
		}
	}
}

// children is the processor time that programs have taken so far.
func children() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_CHILDREN, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

func BenchmarkRestoreOneChain(b *testing.B) {
	eachBigTable(b, func(b *testing.B, ipt *IPTables) {
		batch := &Batch{Tables: []TableBatch{{Table: NAT, Chains: []Chain{chain("KPL-SMALL", "-j ACCEPT")}}}}
		b.ReportAllocs()
		for b.Loop() {
			require.NoError(b, ipt.Restore(b.Context(), batch))
		}
	})
}

func BenchmarkRestoreAndDeleteWhatIsNotThere(b *testing.B) {
	eachBigTable(b, func(b *testing.B, ipt *IPTables) {
		batch := &Batch{Tables: []TableBatch{{Table: NAT,
			Delete: []BuiltinRule{{Chain: "OUTPUT", Rule: "-j KPL-SMALL"}}}}}
		b.ReportAllocs()
		for b.Loop() {
			require.NoError(b, ipt.Restore(b.Context(), batch))
		}
	})
}

func BenchmarkReadAll(b *testing.B) {
	eachBigTable(b, func(b *testing.B, ipt *IPTables) {
		b.ReportAllocs()
		for b.Loop() {
			_, err := ipt.Read(b.Context(), NAT, "KPL-")
			require.NoError(b, err)
		}
	})
}

func BenchmarkGeneration(b *testing.B) {
	eachBigTable(b, func(b *testing.B, ipt *IPTables) {
		b.ReportAllocs()
		for b.Loop() {
			_, err := ipt.Generation(b.Context())
			require.NoError(b, err)
		}
	})
}
