package nfnetlink

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const netlinkHead = "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n"

func TestNetfiltersSocketsAreKnownFromTheList(t *testing.T) {
	list := netlinkHead +
		"00000000208ad045 0   711        00000000 0        0        1     2        0        4       \n" + // of routes
		"0000000073148184 12  0          00000000 0        0        0     2        0        426     \n" +
		"0000000073148185 12  4093       00000000 8448     0        1     3        0        9001    \n" +
		"0000000073148186 12  2923041873 00000008 0        0        0     2        0        9002    \n" +
		"0000000073148188 12  truncated"
	assert.Equal(t, map[uint64]bool{426: false, 9001: true, 9002: false}, netfilterSockets([]byte(list)))
	assert.Empty(t, netfilterSockets(nil))
}

// fakeList is a Readers whose list and clock are the test's.
type fakeList struct {
	t    *testing.T
	path string
	now  time.Time
	*Readers
}

func newFakeList(t *testing.T) *fakeList {
	f := &fakeList{t: t, path: filepath.Join(t.TempDir(), "netlink"), now: time.Unix(1_800_000_000, 0)}
	require.NoError(t, os.WriteFile(f.path, nil, 0o600))
	file, err := os.Open(f.path)
	require.NoError(t, err)
	f.Readers = &Readers{file: file, stuck: map[uint64]bool{}, own: map[uint64]bool{}}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// look asks after a time at which the sockets with these inodes are there: those below 0 are not reading.
func (f *fakeList) look(after time.Duration, inodes ...int) time.Duration {
	list := netlinkHead + strings.Repeat("00000000208ad045 0   711        00000000 0  0  1  2  0  4\n", 300)
	for _, inode := range inodes {
		dump := 1
		if inode < 0 {
			dump, inode = 0, -inode
		}
		list += fmt.Sprintf("0000000073148185 12  4093       00000000 8448  0  %d  3  0  %d\n", dump, inode)
	}
	require.NoError(f.t, os.WriteFile(f.path, []byte(list), 0o600))
	f.now = f.now.Add(after)
	return f.Wait(f.now)
}

func TestReadersAreWaitedForUntilTheyHaveReadTheirLastList(t *testing.T) {
	f := newFakeList(t)
	assert.Zero(t, f.look(0), "nobody is there")
	assert.Zero(t, f.look(0, -9001), "nobody is reading")
	assert.Equal(t, lookAgain, f.look(0, 9001))
	assert.Zero(t, f.look(lookAgain), "the program has ended")

	assert.Equal(t, lookAgain, f.look(0, 9002))
	assert.Equal(t, lookAgain, f.look(betweenLists-1, -9002), "the next list of the same ruleset may come")
	assert.Zero(t, f.look(1, -9002), "it has other things to do")

	f.look(0, 9003)
	for range 20 {
		assert.Equal(t, lookAgain, f.look(lookAgain, 9003))
	}
	assert.Equal(t, lookAgain, f.look(20*lookAgain-1, -9003), "after a long list the next one takes longer to come")
	assert.Equal(t, lookAgain, f.look(0, 9003), "here it is")
	assert.Zero(t, f.look(40*lookAgain, -9003))
}

func TestReadersThatAreSlowGetMoreTime(t *testing.T) {
	f := newFakeList(t)
	f.look(0, 9001)
	assert.Zero(t, f.look(betweenLists, -9001))
	for times := time.Duration(2); times <= mostTimes; times *= 2 {
		assert.Zero(t, f.look(time.Second, -9001))
		assert.Equal(t, lookAgain, f.look(time.Second, 9001), "it begins again")
		assert.Equal(t, lookAgain, f.look(times*betweenLists-1, -9001))
		assert.Zero(t, f.look(1, -9001))
	}
	f.look(0, 9001)
	assert.Zero(t, f.look(mostTimes*betweenLists, -9001))
	assert.Equal(t, lookAgain, f.look(0, 9002), "another one")
	assert.Zero(t, f.look(betweenLists, -9002))
}

func TestReadersThatComeLaterAreNotWaitedFor(t *testing.T) {
	f := newFakeList(t)
	assert.Equal(t, lookAgain, f.look(0, 9001, 9002))
	assert.Equal(t, lookAgain, f.look(lookAgain, 9002, 9003))
	assert.Zero(t, f.look(lookAgain, 9003))
	assert.Equal(t, lookAgain, f.look(0, 9003), "the next time it is")
	assert.Equal(t, lookAgain, f.look(time.Hour, 9004), "so is whoever is there when nobody has asked for long")
}

func TestAReaderThatHasStoppedIsNotWaitedFor(t *testing.T) {
	f := newFakeList(t)
	for range int(stuckAfter / time.Second) {
		assert.Equal(t, lookAgain, f.look(time.Second, 9001))
	}
	assert.Zero(t, f.look(time.Second, 9001))
	assert.Zero(t, f.look(time.Second, 9001))
	assert.Equal(t, lookAgain, f.look(time.Second, 9001, 9002), "another one is")
	assert.Zero(t, f.look(time.Second, -9001), "and it, once it has gone on")
	assert.Equal(t, lookAgain, f.look(time.Second, 9001))
}

func TestThisProcessIsNotWaitedFor(t *testing.T) {
	f := newFakeList(t)
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	raw, err := c.(*net.UDPConn).SyscallConn()
	require.NoError(t, err)
	var stat unix.Stat_t
	require.NoError(t, raw.Control(func(fd uintptr) { err = unix.Fstat(int(fd), &stat) }))
	require.NoError(t, err)
	own := int(stat.Ino)
	assert.Zero(t, f.look(0, own))
	assert.Equal(t, map[uint64]bool{stat.Ino: true}, f.own, "it is not looked up again")
	f.own[stat.Ino] = false
	assert.Equal(t, lookAgain, f.look(time.Second, own))
	assert.Zero(t, f.look(time.Second), "it is gone")
	assert.Zero(t, f.look(time.Second, own), "and forgotten")
}

func TestWithoutTheListNobodyIsWaitedFor(t *testing.T) {
	r := &Readers{}
	assert.Zero(t, r.Wait(time.Now()))
	require.NoError(t, r.Close())
}
