package brain

import (
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
)

// endedStreams logs why streams have ended. Any client can end as many as it likes, so for each status code it logs
// logBurst lines, and then one each logPause, which says how many were left out. The zero value is ready to use.
type endedStreams struct {
	mu sync.Mutex
	of map[codes.Code]*endedLog
}

// endedLog is what is known of the lines for one status code.
type endedLog struct {
	lines   int       // that may be logged at once
	since   time.Time // when lines last grew
	omitted int       // since the last line
}

const (
	logBurst = 10
	logPause = 10 * time.Second
	// maxLogText is the maximum length of a reason in bytes. It may quote the client.
	maxLogText = 200
)

// log logs the end of a stream, unless there have been too many.
func (e *endedStreams) log(log klog.Logger, client string, code codes.Code, reason string) {
	omitted, ok := e.next(code, time.Now())
	if !ok {
		return
	}
	if reason = wire.FirstOf(reason); len(reason) > maxLogText {
		reason = reason[:maxLogText] + "..."
	}
	log.Info("A client's stream has ended", "client", client, "reason", reason, "omitted", omitted)
}

// next reports whether a line may be logged, and how many were left out before it.
func (e *endedStreams) next(code codes.Code, now time.Time) (omitted int, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.of[code]
	if l == nil {
		if e.of == nil {
			e.of = map[codes.Code]*endedLog{}
		}
		l = &endedLog{lines: logBurst, since: now}
		e.of[code] = l
	}
	if n := int(now.Sub(l.since) / logPause); n > 0 {
		l.lines = min(l.lines+n, logBurst)
		l.since = l.since.Add(time.Duration(n) * logPause)
	}
	if l.lines == 0 {
		l.omitted++
		return 0, false
	}
	omitted, l.omitted = l.omitted, 0
	l.lines--
	return omitted, true
}
