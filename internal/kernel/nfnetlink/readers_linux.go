package nfnetlink

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strconv"
	"sync"
	"time"
)

// Readers finds other programs that read from netfilter, such as an nft that lists a ruleset. They have to restart
// whenever the ruleset changes during the listing.
type Readers struct {
	mu   sync.Mutex
	file *os.File // the netlink sockets of the namespace in which it was opened
	text []byte

	// State while waiting for programs.
	began, looked time.Time       // began is zero while not waiting
	last          time.Time       // the last time that one was reading
	waited        map[uint64]bool // by inode of the socket; true: has been reading at every check
	times         time.Duration   // see betweenLists
	// stuck are programs that are no longer waited for, until they stop reading.
	stuck map[uint64]bool
	// own says whether sockets seen reading belong to this process. It is a cache, because each check takes time in
	// proportion to the number of this process's files.
	own map[uint64]bool
}

const (
	// lookAgain is the interval between checks.
	lookAgain = 10 * time.Millisecond
	// betweenLists is the time that a program may take between two lists of a ruleset. After a big list it may take as
	// long as the list took: nft processes one set before it requests the next. On a busy machine it takes longer, so a
	// program that reads again later gets twice the time, and so on.
	betweenLists = 25 * time.Millisecond
	mostTimes    = 32
	// stuckAfter is the time after which a program that is still reading the same list is considered stuck.
	stuckAfter = 30 * time.Second
	// After givenUp without a call, earlier programs are no longer waited for; after forgotten, their return does not
	// count either.
	givenUp, forgotten = time.Second, 5 * time.Minute
)

// OpenReaders opens the list of netlink sockets of the calling thread's network namespace. Without /proc it finds no
// programs.
func OpenReaders() *Readers {
	file, _ := os.Open("/proc/thread-self/net/netlink") // nil after an error
	return &Readers{file: file, text: make([]byte, 0, 16<<10), stuck: map[uint64]bool{}, own: map[uint64]bool{}}
}

// Close closes the list.
func (r *Readers) Close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

// Wait returns how long to leave the ruleset alone before the next call because a program is reading; 0 if none is, or
// if that is unknown. It waits only for programs that were reading at the first call, because consecutive readers could
// otherwise block it forever. It takes about 10 us, and 1 us for each netlink socket of the namespace.
func (r *Readers) Wait(now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.read(); err != nil {
		return 0
	}
	sockets := netfilterSockets(r.text)
	maps.DeleteFunc(r.stuck, func(inode uint64, _ bool) bool { return !sockets[inode] })
	maps.DeleteFunc(r.own, func(inode uint64, _ bool) bool { _, there := sockets[inode]; return !there })
	if now.Sub(r.looked) > givenUp {
		r.began = time.Time{}
	}
	if now.Sub(r.looked) > forgotten {
		r.waited = nil
	}
	r.looked = now
	if r.began.IsZero() {
		r.begin(now, sockets)
	} else {
		r.goOn(now, sockets)
	}
	if r.began.IsZero() || len(r.waited) == 0 || now.Sub(r.last) >= r.times*max(betweenLists, r.last.Sub(r.began)) {
		r.began = time.Time{}
		return 0
	}
	return lookAgain
}

// begin chooses the programs to wait for, from the sockets that are reading.
func (r *Readers) begin(now time.Time, sockets map[uint64]bool) {
	before, times := r.waited, time.Duration(1)
	r.waited = map[uint64]bool{}
	for inode, reading := range sockets {
		if !reading || r.stuck[inode] || r.isOwn(inode) {
			continue
		}
		r.waited[inode] = true
		if _, again := before[inode]; again {
			times = min(2*r.times, mostTimes)
		}
	}
	if len(r.waited) == 0 { // a program may return
		r.waited = before
		maps.DeleteFunc(r.waited, func(inode uint64, _ bool) bool { _, there := sockets[inode]; return !there })
		return
	}
	r.began, r.last, r.times = now, now, times
}

// goOn updates which programs are still reading.
func (r *Readers) goOn(now time.Time, sockets map[uint64]bool) {
	for inode := range r.waited {
		reading, there := sockets[inode]
		switch {
		case !there:
			delete(r.waited, inode)
		case !reading:
			r.waited[inode] = false
		case r.waited[inode] && now.Sub(r.began) >= stuckAfter:
			delete(r.waited, inode)
			r.stuck[inode] = true
		default:
			r.last = now
		}
	}
}

// read rereads the list.
func (r *Readers) read() error {
	r.text = r.text[:0]
	for {
		if len(r.text) == cap(r.text) {
			r.text = append(r.text, 0)[:len(r.text)]
		}
		n, err := r.file.ReadAt(r.text[len(r.text):cap(r.text)], int64(len(r.text)))
		r.text = r.text[:len(r.text)+n]
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// netfilterSockets returns netfilter's sockets by inode, and whether each has a dump in progress.
func netfilterSockets(list []byte) map[uint64]bool {
	sockets := map[uint64]bool{}
	for line := range bytes.Lines(list) {
		// sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode
		f := bytes.Fields(line)
		if len(f) < 10 || string(f[1]) != "12" { // NETLINK_NETFILTER
			continue
		}
		if inode, err := strconv.ParseUint(string(f[9]), 10, 64); err == nil {
			sockets[inode] = string(f[6]) != "0"
		}
	}
	return sockets
}

// isOwn reports whether a socket belongs to this process.
func (r *Readers) isOwn(inode uint64) bool {
	own, known := r.own[inode]
	if !known {
		own = isOwn(inode)
		r.own[inode] = own
	}
	return own
}

func isOwn(inode uint64) bool {
	const fds = "/proc/self/fd/"
	dir, err := os.Open(fds)
	if err != nil {
		return false
	}
	defer func() { _ = dir.Close() }()
	names, _ := dir.Readdirnames(-1)
	own := fmt.Sprintf("socket:[%d]", inode)
	for _, name := range names {
		if target, err := os.Readlink(fds + name); err == nil && target == own {
			return true
		}
	}
	return false
}
