package messagegroups

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"
)

// outcomes of messages, until all have one.
type outcomes struct {
	loop   *loop
	wanted int
	found  []string
}

func (o *outcomes) announce(_ *Message, begin func()) { begin() }

func (o *outcomes) ended(m *Message, reason *string) {
	said := "done"
	if reason != nil {
		said = *reason
	}
	o.found = append(o.found, fmt.Sprint(m.key, m.Seq, " ", said, " ", m.Calls))
	if len(o.found) == o.wanted {
		o.loop.end()
	}
}

// handle two messages of one group, with a pause of a millisecond and three attempts.
func handle(t *testing.T, handler Handler) []string {
	t.Helper()
	l := &loop{wake: make(chan struct{}, 1)}
	seen := &outcomes{loop: l, wanted: 2}
	h := newHandling(handler, 4, seen, l)
	h.backoff = time.Millisecond
	l.post(func() {
		for seq := int64(1); seq <= 2; seq++ {
			m := copyOf(seq, "g", 1, seq)
			m.lost, m.lose = context.WithCancel(context.Background())
			h.add(m)
		}
		h.goOn(true)
	})
	l.run()
	return seen.found
}

func TestHowAHandlerEnds(t *testing.T) {
	for name, test := range map[string]struct {
		first  func(calls int) error // of the first message; the second is done
		wanted string
	}{
		"done":         {func(int) error { return nil }, "done 1"},
		"fails":        {func(int) error { return errors.New("no") }, "no 3"},
		"mends":        {func(calls int) error { return errorUntil(calls, 2) }, "done 2"},
		"rejects":      {func(int) error { return fmt.Errorf("so: %w", Reject("never")) }, "so: never 1"},
		"panics":       {func(int) error { panic("oh") }, "panic: oh 3"},
		"asks to wait": {func(int) error { return RetryLater(time.Microsecond, "later") }, "later 3"},
	} {
		found := handle(t, func(_ context.Context, m *Message) error {
			if m.Seq == 1 {
				return test.first(m.Calls)
			}
			return nil
		})
		if wanted := []string{"g1 " + test.wanted, "g2 done 1"}; !reflect.DeepEqual(found, wanted) {
			t.Errorf("%s: %q, not %q", name, found, wanted)
		}
	}
}

func errorUntil(calls, enough int) error {
	if calls < enough {
		return errors.New("not yet")
	}
	return nil
}

func TestNotNowUsesUpNoAttempt(t *testing.T) {
	outage := 10
	found := handle(t, func(context.Context, *Message) error {
		if outage--; outage >= 0 {
			return NotNow(time.Microsecond, "the database is away")
		}
		return nil
	})
	if wanted := []string{"g1 done 1", "g2 done 1"}; !reflect.DeepEqual(found, wanted) {
		t.Errorf("%q", found)
	}
}

func TestPausesDoubleUpToAMinute(t *testing.T) {
	h := newHandling(nil, 1, nil, nil)
	h.backoff = 20 * time.Second
	for calls, wanted := range map[int]time.Duration{1: 20 * time.Second, 2: 40 * time.Second, 3: time.Minute, 90: time.Minute} {
		if found := h.pauseAfter(&Message{Calls: calls}, nil); found != wanted {
			t.Errorf("after %d calls: %v, not %v", calls, found, wanted)
		}
	}
}

func TestWhatWasLostCountsNoMore(t *testing.T) {
	l := &loop{wake: make(chan struct{}, 1)}
	seen := &outcomes{loop: l, wanted: 1}
	running := make(chan bool)
	h := newHandling(func(ctx context.Context, m *Message) error {
		if m.Seq == 3 { // a new incarnation has it
			return nil
		}
		running <- true
		<-ctx.Done()
		return nil
	}, 4, seen, l)
	var lost []*Message
	add := func(seq int64) *Message {
		m := copyOf(seq, "g", 1, seq)
		m.lost, m.lose = context.WithCancel(context.Background())
		h.add(m)
		return m
	}
	l.post(func() {
		h.goOn(true)
		lost = append(lost, add(1), add(2))
	})
	go func() {
		<-running
		l.post(func() {
			h.lose(map[int64]*Message{1: lost[0], 2: lost[1]})
			add(3)
		})
	}()
	l.run()
	if wanted := []string{"g3 done 1"}; !reflect.DeepEqual(seen.found, wanted) {
		t.Errorf("%q", seen.found)
	}
}
