package nfnetlink

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

const (
	nft      = unix.NFNL_SUBSYS_NFTABLES << 8
	ctGetAll = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
)

func dial(t *testing.T, ns *testkit.Namespace) *Conn {
	t.Helper()
	return dialWith(t, Config{NetNS: ns.FD(), SendBuffer: 1 << 20, ReceiveBuffer: 1 << 20})
}

func dialWith(t *testing.T, config Config) *Conn {
	t.Helper()
	c, err := Dial(config)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// A process that has run out of files gets an error, in whichever step that happens.
func TestASocketThatCannotBeOpenedIsAnError(t *testing.T) {
	ns := testkit.NewNamespace(t)
	dial(t, ns) // files that the runtime opens once
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	file, err := os.Open(os.DevNull)
	require.NoError(t, err)
	next := uint64(file.Fd())
	require.NoError(t, file.Close())
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }()
	for spare := range uint64(3) {
		few := limit
		few.Cur = next + spare
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
		for _, config := range []Config{{}, {NetNS: ns.FD()}} {
			c, err := Dial(config)
			if err == nil {
				require.NoError(t, c.Close())
			} else {
				require.ErrorIs(t, err, unix.EMFILE)
				require.ErrorContains(t, err, "opening a netlink socket")
			}
			if spare == 0 {
				require.Error(t, err)
			}
		}
	}
}

// tables makes some tables, and asks for acknowledgements of all.
func tables(t *testing.T, c *Conn, names ...string) {
	t.Helper()
	var b Builder
	b.Message(unix.NFNL_MSG_BATCH_BEGIN, unix.NLM_F_REQUEST, 0, unix.NFNL_SUBSYS_NFTABLES)
	b.End()
	for _, name := range names {
		b.Message(nft|unix.NFT_MSG_NEWTABLE, unix.NLM_F_REQUEST|unix.NLM_F_CREATE|unix.NLM_F_ACK, unix.NFPROTO_IPV4, 0)
		b.Text(unix.NFTA_TABLE_NAME, name)
		b.End()
	}
	b.Message(unix.NFNL_MSG_BATCH_END, unix.NLM_F_REQUEST, 0, unix.NFNL_SUBSYS_NFTABLES)
	b.End()
	require.NoError(t, c.Send(b.Buf))
	acknowledged := 0
	require.NoError(t, c.Answers(func(m Message) error {
		errno, hint := m.Failure()
		require.Zero(t, errno, hint)
		acknowledged++
		return nil
	}))
	require.Equal(t, len(names), acknowledged)
}

func list(c *Conn) *Builder {
	b := c.Request(nft|unix.NFT_MSG_GETTABLE, unix.NLM_F_DUMP, unix.NFPROTO_IPV4)
	b.End()
	return b
}

func TestConnListsWhatItMade(t *testing.T) {
	c := dial(t, testkit.NewNamespace(t))
	before, err := c.Generation()
	require.NoError(t, err)
	tables(t, c, "one", "two", "three")
	after, err := c.Generation()
	require.NoError(t, err)
	assert.Equal(t, before+1, after)

	var names []string
	require.NoError(t, c.Dump(list(c), func(m Message) error {
		for typ, v := range m.Attributes() {
			if typ == unix.NFTA_TABLE_NAME {
				names = append(names, CString(v))
			}
		}
		return nil
	}))
	assert.ElementsMatch(t, []string{"one", "two", "three"}, names)
}

func TestADumpThatEndsEarlyIsNoBurdenToTheNext(t *testing.T) {
	c := dial(t, testkit.NewNamespace(t))
	var names []string
	for i := range 2000 { // more than one read
		names = append(names, "a-table-with-a-long-name-"+string(rune('a'+i%26))+string(rune('a'+i/26%26))+
			string(rune('a'+i/676)))
	}
	for len(names) > 0 {
		tables(t, c, names[:200]...)
		names = names[200:]
	}
	stop := errors.New("stop")
	require.Equal(t, stop, c.Dump(list(c), func(Message) error { return stop }))
	n := 0
	require.NoError(t, c.Dump(list(c), func(Message) error { n++; return nil }))
	assert.Equal(t, 2000, n)
}

func TestARefusedRequestIsDistinguished(t *testing.T) {
	c := dial(t, testkit.NewNamespace(t))
	b := c.Request(ctGetAll, unix.NLM_F_DUMP, unix.AF_INET)
	filter := b.Open(25)
	b.Uint32(1, 0xffffffff) // one that no kernel knows
	b.Close(filter)
	b.End()
	err := c.Dump(b, func(Message) error { t.Error("nothing is listed"); return nil })
	refused := (*Error)(nil)
	require.ErrorAs(t, err, &refused)
	assert.NotZero(t, refused.Errno)
	assert.ErrorIs(t, err, refused.Errno)

	request := c.Request(nft|unix.NFT_MSG_GETTABLE, 0, unix.NFPROTO_IPV4)
	request.Text(unix.NFTA_TABLE_NAME, "missing")
	request.End()
	require.NoError(t, c.Send(request.Buf))
	answers := 0
	require.NoError(t, c.Answers(func(m Message) error {
		errno, _ := m.Failure()
		assert.Equal(t, unix.ENOENT, errno)
		answers++
		return nil
	}))
	assert.Equal(t, 1, answers)
}

func TestWaitReportsChangesByOthersUntilClose(t *testing.T) {
	ns := testkit.NewNamespace(t)
	listener, writer := dialWith(t, Config{NetNS: ns.FD(), Waits: true}), dial(t, ns)
	require.NoError(t, listener.Join(unix.NFNLGRP_NFTABLES))
	tables(t, writer, "one")
	b, err := listener.Wait()
	require.NoError(t, err)
	require.NoError(t, Messages(b, func(m Message) error {
		assert.Equal(t, writer.Port(), m.Port)
		return nil
	}))
	require.NoError(t, listener.Leave(unix.NFNLGRP_NFTABLES))
	ended := make(chan error)
	go func() {
		for {
			if _, err := listener.Wait(); err != nil {
				ended <- err
				return
			}
		}
	}()
	require.NoError(t, listener.Close())
	assert.ErrorIs(t, <-ended, os.ErrClosed)
}

func TestErrorSaysWhatTheKernelSaid(t *testing.T) {
	assert.EqualError(t, &Error{Errno: unix.EINVAL}, "invalid argument")
	assert.EqualError(t, &Error{Errno: unix.EINVAL, Hint: "no such set"}, "invalid argument (no such set)")
}
