package network

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Ending is the way a large transfer ends.
type Ending int

const (
	ClientEndsFirst Ending = iota // then the server answers
	ServerEndsFirst               // then the client sends
	BothAtOnce                    // both send all the time
	ClientResets                  // halfway
	ServerResets                  // halfway
)

func (e Ending) String() string {
	return [...]string{"the client ends its half before the server sends",
		"the server ends its half before the client sends", "both send at the same time",
		"the client resets the connection halfway", "the server resets the connection halfway"}[e]
}

// transfer is a large amount of data on one connection, in both directions. Both ends know what to expect.
type transfer struct {
	id   string
	seed uint64
	size int64
	Ending
	// done receives the server's error, or nil.
	done chan error
}

// transfers are the expected transfers, by their first line.
type transfers struct {
	mu   sync.Mutex
	next uint64
	list map[string]*transfer
}

func (ts *transfers) add(e Ending, size int64) *transfer {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.next++
	t := &transfer{id: fmt.Sprintf("transfer-%d", ts.next), seed: ts.next, size: size, Ending: e,
		done: make(chan error, 1)}
	if ts.list == nil {
		ts.list = map[string]*transfer{}
	}
	ts.list[t.id] = t
	return t
}

// begun returns the transfer that starts with this line, or nil if it is another question.
func (ts *transfers) begun(line string) *transfer {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.list[line]
	delete(ts.list, line)
	return t
}

// content returns one side's data, which depends only on the seed.
func (t *transfer) content(fromClient bool) io.Reader {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], t.seed)
	if fromClient {
		seed[31] = 1
	}
	return io.LimitReader(rand.NewChaCha8(seed), t.size)
}

// send sends one side's data.
func (t *transfer) send(w io.Writer, fromClient bool) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{w}, t.content(fromClient), make([]byte, 32<<10))
	return err
}

// receive reads and checks the other side's data, to its end.
func (t *transfer) receive(r io.Reader, fromClient bool) error {
	want := t.content(fromClient)
	got, expected := make([]byte, 32<<10), make([]byte, 32<<10)
	for count := int64(0); ; {
		n, err := r.Read(got)
		if _, e := io.ReadFull(want, expected[:n]); e != nil && n > 0 {
			return fmt.Errorf("received more than %d bytes", t.size)
		}
		if string(got[:n]) != string(expected[:n]) {
			return fmt.Errorf("received wrong data between byte %d and byte %d", count, count+int64(n))
		}
		count += int64(n)
		switch {
		case errors.Is(err, io.EOF) && count == t.size:
			return nil
		case errors.Is(err, io.EOF):
			return fmt.Errorf("the stream ended after %d of %d bytes", count, t.size)
		case err != nil:
			return fmt.Errorf("after %d of %d bytes: %w", count, t.size, err)
		}
	}
}

// serve runs the server's side.
func (t *transfer) serve(conn *net.TCPConn, r *bufio.Reader) {
	t.done <- t.exchange(r, conn, conn.CloseWrite, false, func() error {
		_ = conn.SetLinger(0)
		return conn.Close()
	})
}

// exchange runs one side of the transfer.
func (t *transfer) exchange(r io.Reader, w io.Writer, endHalf func() error, client bool, reset func() error) error {
	send := func() error {
		err := t.send(w, client)
		if err == nil {
			err = endHalf()
		}
		if err != nil {
			return fmt.Errorf("sending: %w", err)
		}
		return nil
	}
	switch t.Ending {
	case BothAtOnce:
		sent := make(chan error, 1)
		go func() { sent <- send() }()
		err := t.receive(r, !client)
		return errors.Join(err, <-sent)
	case ClientEndsFirst, ServerEndsFirst:
		if client == (t.Ending == ClientEndsFirst) {
			if err := send(); err != nil {
				return err
			}
			return t.receive(r, !client)
		}
		if err := t.receive(r, !client); err != nil {
			return err
		}
		return send()
	}
	if client == (t.Ending == ClientResets) {
		// The client resets after it has sent half of its data, the server after it has received that half.
		var err error
		if client {
			_, err = io.CopyN(w, t.content(true), t.size/2)
		} else {
			_, err = io.CopyN(io.Discard, r, t.size/2)
		}
		if err != nil {
			return fmt.Errorf("before the reset: %w", err)
		}
		return reset()
	}
	var err error
	if client {
		err = t.send(w, true)
	}
	if err == nil {
		_, err = io.Copy(io.Discard, r)
	}
	switch {
	case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		return nil
	case err == nil:
		return errors.New("the connection ended in order, and was not reset")
	}
	return fmt.Errorf("waiting for the reset: %w", err)
}

// Transfer sends size bytes in each direction. It continues while data moves, however slowly.
func (c *Connection) Transfer(e Ending, size int64, p Timeouts) error {
	t := c.n.servers.transfers.add(e, size)
	if err := c.sock.send([]byte(t.id + "\n")); err != nil {
		return err
	}
	s := &timedStream{c.sock.file, p.Answer}
	r := bufio.NewReader(s)
	line, err := r.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("waiting for the first answer: %w", err)
	}
	if a, err := decodeAnswer(line); err != nil || a.echo != t.id {
		return fmt.Errorf("the first answer is %q", line)
	}
	err = t.exchange(r, s, c.sock.endHalf, true, func() error { c.Close(); return nil })
	if err != nil {
		return fmt.Errorf("at the client: %w", err)
	}
	select {
	case err = <-t.done:
	case <-time.After(p.Answer):
		err = errors.New("received nothing")
	}
	if err != nil {
		return fmt.Errorf("at the server: %w", err)
	}
	return nil
}

// timedStream is a socket's stream with a timeout for each read and write.
type timedStream struct {
	file    *os.File
	timeout time.Duration
}

func (s *timedStream) Read(b []byte) (int, error) {
	if err := s.file.SetReadDeadline(time.Now().Add(s.timeout)); err != nil {
		return 0, err
	}
	return s.file.Read(b)
}

func (s *timedStream) Write(b []byte) (int, error) {
	if err := s.file.SetWriteDeadline(time.Now().Add(s.timeout)); err != nil {
		return 0, err
	}
	return s.file.Write(b)
}

// endHalf closes the sending direction.
func (s *socket) endHalf() error {
	var result error
	err := s.raw.Control(func(fd uintptr) {
		result = os.NewSyscallError("shutdown", unix.Shutdown(int(fd), unix.SHUT_WR))
	})
	return errors.Join(err, result)
}
