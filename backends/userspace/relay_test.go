package userspace

import (
	"io"
	"net"
	"runtime"
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
			(&relay{client: c, server: s, slot: &slot{}, open: 2, timeout: time.Hour, closeWait: time.Minute,
				checkEvery: time.Minute}).run()
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
		for pause := range time.Duration(59) { // so that data comes at all times between two checks
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

// pair returns the two ends of a TCP connection.
func pair(t *testing.T) (a, b *net.TCPConn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	dialled, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	accepted, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = dialled.Close(), accepted.Close() })
	return dialled.(*net.TCPConn), accepted.(*net.TCPConn)
}

// ended waits for the end of a relay.
func ended(t *testing.T, end <-chan struct{}) {
	t.Helper()
	select {
	case <-end:
	case <-time.After(time.Minute):
		t.Fatal("the relay goes on")
	}
}

// checkingOften returns a relay that checks often whether a side is gone, and a channel that is closed when it has
// ended.
func checkingOften(client, server net.Conn) (*relay, <-chan struct{}) {
	r := &relay{client: client, server: server, slot: &slot{}, open: 2, timeout: time.Hour, closeWait: time.Hour,
		checkEvery: time.Millisecond}
	end := make(chan struct{})
	go func() {
		defer close(end)
		r.run()
	}()
	return r, end
}

// A client gives up on a server that hangs: it ends its half of the connection, and soon its kernel forgets the
// connection. The server, which has not read yet, gets everything.
func TestAConnectionEndsWhenASideThatEndedItsHalfIsGone(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows reports a reset to nobody who does not read or write")
	}
	for _, who := range []string{"client", "server"} {
		t.Run(who, func(t *testing.T) {
			goes, client := pair(t)
			stays, server := pair(t)
			if who == "server" {
				client, server = server, client
			}
			r, end := checkingOften(client, server)
			sent := make([]byte, 1<<16)
			_, err := goes.Write(sent)
			require.NoError(t, err)
			require.NoError(t, goes.CloseWrite())
			for halves := 2; halves > 1; time.Sleep(time.Millisecond) {
				r.mu.Lock()
				halves = r.open
				r.mu.Unlock()
			}
			reset(goes)
			ended(t, end)
			got, err := io.ReadAll(stays)
			require.NoError(t, err)
			assert.Len(t, got, len(sent))
		})
	}
}

// A client gives up on a server that no longer reads: the relay is blocked in a write, and does not read from the
// client.
func TestAConnectionEndsWhenASideThatCannotSendOnIsGone(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows reports a reset to nobody who does not read or write")
	}
	goes, client := pair(t)
	stays, server := pair(t)
	_, end := checkingOften(client, server)
	sent := make([]byte, 1<<16)
	for err := error(nil); err == nil; {
		require.NoError(t, goes.SetWriteDeadline(time.Now().Add(200*time.Millisecond)))
		_, err = goes.Write(sent)
	}
	reset(goes)
	ended(t, end)
	_, err := io.Copy(io.Discard, stays)
	assert.Error(t, err, "the server sees a reset, not the end")
}
