package hostaddr

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// A host that gets thousands of addresses at a time is not read once for each of them.
func TestChangesDuringAReadingAreReadTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, goOn := 0, make(chan struct{})
		call, stop := combined(func() {
			calls++
			<-goOn
		})
		call()
		synctest.Wait()
		for range 10_000 {
			call()
		}
		require.Equal(t, 1, calls)
		goOn <- struct{}{}
		synctest.Wait()
		require.Equal(t, 2, calls)
		goOn <- struct{}{}
		synctest.Wait()
		require.Equal(t, 2, calls)
		call()
		synctest.Wait()
		go func() { goOn <- struct{}{} }()
		stop()
		require.Equal(t, 3, calls)
	})
}

func TestSystemHasALoopbackAddress(t *testing.T) {
	list, err := (&System{}).Addresses()
	require.NoError(t, err)
	found := false
	for _, a := range list {
		require.True(t, a.Addr.IsValid())
		require.NotEmpty(t, a.Interface)
		found = found || a.Addr.IsLoopback()
	}
	require.True(t, found, "%v", list)
}
