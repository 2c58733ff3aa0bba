package e2e_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// trafficCommand is the first argument of this program where it is a client: the others are URLs of HTTP servers. It
// makes new connections to each, one after the other, and sends requests on one that stays, unless "moved" is in its
// fragment: its endpoints end. It prints what was lost, and how many answers came, at least to each and in all, until
// it is ended.
const trafficCommand = "traffic"

// How often a client asks, and how long it waits for an answer: longer than TCP's first four attempts take.
const (
	pauseOfNew      = 50 * time.Millisecond
	pauseOfStanding = 200 * time.Millisecond
	answerTimeout   = 20 * time.Second
)

// The first words of a line that reports a loss, and of one with the number of answers.
const (
	lostLine  = "LOST: "
	countLine = "answered: "
)

// makeTraffic implements trafficCommand.
func makeTraffic(out io.Writer, urls []string) {
	var answers []*atomic.Int64 // of each that asks
	lines := make(chan string)
	begin := func(ask func(url string, answers *atomic.Int64, lost chan<- string), url string) {
		n := new(atomic.Int64)
		answers = append(answers, n)
		go ask(url, n, lines)
	}
	for _, url := range urls {
		url, kind, _ := strings.Cut(url, "#")
		begin(newConnections, url)
		if kind != "moved" {
			begin(standingConnection, url)
		}
	}
	for tick := time.Tick(time.Second); ; {
		select {
		case line := <-lines:
			fmt.Fprintln(out, lostLine+time.Now().Format(time.TimeOnly)+" "+line)
		case <-tick:
			least, all := int64(math.MaxInt64), int64(0)
			for _, n := range answers {
				least, all = min(least, n.Load()), all+n.Load()
			}
			fmt.Fprintln(out, countLine, least, "of", all)
		}
	}
}

func newConnections(url string, answers *atomic.Int64, lost chan<- string) {
	client := &http.Client{Timeout: answerTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
	for ; ; time.Sleep(pauseOfNew) {
		response, err := client.Get(url)
		if err == nil {
			err = whole(response)
		}
		if err != nil {
			lost <- "a new connection: " + err.Error()
			continue
		}
		answers.Add(1)
	}
}

func standingConnection(url string, answers *atomic.Int64, lost chan<- string) {
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	for err == nil {
		err = onOneConnection(request, answers)
		lost <- "a standing connection: " + err.Error()
	}
}

// onOneConnection sends requests until one fails.
func onOneConnection(request *http.Request, answers *atomic.Int64) error {
	c, err := net.DialTimeout("tcp", request.URL.Host, answerTimeout)
	if err != nil {
		return err
	}
	defer c.Close()
	for r := bufio.NewReader(c); ; time.Sleep(pauseOfStanding) {
		if err := c.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
			return err
		}
		if err := request.Write(c); err != nil {
			return err
		}
		response, err := http.ReadResponse(r, request)
		if err != nil {
			return err
		}
		if err := whole(response); err != nil {
			return err
		}
		answers.Add(1)
	}
}

// whole reads an answer to its end.
func whole(response *http.Response) error {
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("status %s", response.Status)
	}
	_, err := io.Copy(io.Discard, response.Body)
	return err
}
