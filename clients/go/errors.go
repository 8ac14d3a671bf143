package messagegroups

import "time"

type rejection struct{ reason string }

func (e *rejection) Error() string { return e.reason }

// Reject is what a handler returns when no call will succeed: the message goes to the dead queue at once.
func Reject(reason string) error { return &rejection{reason} }

type retry struct {
	pause  time.Duration
	reason string
	isFree bool
}

func (e *retry) Error() string { return e.reason }

// RetryLater is what a handler returns to be called again after this pause, instead of the lane's.
func RetryLater(pause time.Duration, reason string) error { return &retry{pause, reason, false} }

// NotNow is the same, and the call does not count: it bridges the outage of something that the handler needs.
func NotNow(pause time.Duration, reason string) error { return &retry{pause, reason, true} }
