package failures

import "time"

// Lines says when to log a condition that may hold in many Syncs, a hundred in a second: when it begins, once a minute
// while it lasts, and when its text changes, but not twice in a second. Its zero value is ready to use. It is not safe
// for concurrent use.
type Lines struct {
	text string
	at   time.Time
}

// Due reports whether to log the text now, and assumes that it is logged then.
func (l *Lines) Due(text string, now time.Time) bool {
	since := now.Sub(l.at)
	if !l.at.IsZero() && (since < time.Second || text == l.text && since < time.Minute) {
		return false
	}
	l.text, l.at = text, now
	return true
}
