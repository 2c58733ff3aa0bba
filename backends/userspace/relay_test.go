package userspace

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// relayed calls test with a client's and a server's end of a relay with a timeout of an hour. ended is closed when the
// relay has ended. The clock is synctest's.
func relayed(t *testing.T, test func(t *testing.T, client, server net.Conn, ended <-chan struct{})) {
	synctest.Test(t, func(t *testing.T) {
		client, c := net.Pipe()
		server, s := net.Pipe()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			(&relay{client: c, server: s, open: 2, timeout: time.Hour, closeWait: time.Minute}).run()
		}()
		test(t, client, server, ended)
		_, _ = client.Close(), server.Close()
		<-ended
	})
}

func TestAConnectionEndsWhenNeitherSideSends(t *testing.T) {
	relayed(t, func(t *testing.T, client, server net.Conn, ended <-chan struct{}) {
		begin := time.Now()
		<-ended
		assert.GreaterOrEqual(t, time.Since(begin), time.Hour)
		assert.LessOrEqual(t, time.Since(begin), 2*time.Hour)
		_, err := client.Read(make([]byte, 1))
		assert.ErrorIs(t, err, io.EOF)
		_, err = server.Read(make([]byte, 1))
		assert.ErrorIs(t, err, io.EOF)
	})
}

func TestAConnectionOnWhichOneSideSendsNowAndThenGoesOn(t *testing.T) {
	relayed(t, func(t *testing.T, client, server net.Conn, ended <-chan struct{}) {
		for pause := range time.Duration(59) { // so that data comes at all times between two looks
			time.Sleep(pause * time.Minute)
			_, err := server.Write([]byte("x"))
			require.NoError(t, err)
			_, err = io.ReadFull(client, make([]byte, 1))
			require.NoError(t, err)
		}
		begin := time.Now()
		<-ended
		assert.GreaterOrEqual(t, time.Since(begin), time.Hour)
		assert.LessOrEqual(t, time.Since(begin), 2*time.Hour)
	})
}

func TestAConnectionEndsWhenASideNeitherReadsNorSends(t *testing.T) {
	relayed(t, func(t *testing.T, _, server net.Conn, ended <-chan struct{}) {
		begin := time.Now()
		_, err := server.Write([]byte("x"))
		require.NoError(t, err)
		<-ended
		assert.LessOrEqual(t, time.Since(begin), 3*time.Hour)
	})
}
