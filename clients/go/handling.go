package messagegroups

import (
	"errors"
	"fmt"
	"log"
	"runtime/debug"
	"sort"
	"time"
)

const backoffMax = time.Minute

// owner of a handling.
type owner interface {
	// announce does `begin` now, or when RabbitMQ knows that the message is to begin.
	announce(m *Message, begin func())
	// ended : the message is done, or given up with a reason.
	ended(m *Message, reason *string)
}

// handling calls the handler: groups side by side, one message of a group at a time, failing ones again in place.
// Everything but the handler itself runs on the loop.
type handling struct {
	concurrency int
	attempts    int // the lane's; a welcome says them
	backoff     time.Duration
	begun       map[*Message]bool // those between two attempts included
	handler     Handler
	owner       owner
	loop        *loop
	ready       []*Message            // may begin, by their numbers
	groups      map[string][]*Message // what is behind the one that is ready, running or between two attempts
	paused      map[*Message]*timer   // between two attempts
	running     int
	isOn        bool
}

func newHandling(handler Handler, concurrency int, owner owner, loop *loop) *handling {
	return &handling{
		concurrency: concurrency, attempts: 3, backoff: time.Second, begun: map[*Message]bool{}, handler: handler,
		owner: owner, loop: loop, groups: map[string][]*Message{}, paused: map[*Message]*timer{},
	}
}

// goOn : whether anything may begin; what has begun goes on in any case.
func (h *handling) goOn(isOn bool) {
	h.isOn = isOn
	h.fill()
}

func (h *handling) add(m *Message) {
	if m.key != "" {
		if waiting, isBusy := h.groups[m.key]; isBusy {
			h.groups[m.key] = append(waiting, m)
			return
		}
		h.groups[m.key] = nil
	}
	h.makeReady(m)
}

// lose messages that have gone to other consumers. Handlers that run still keep their group busy.
func (h *handling) lose(messages map[int64]*Message) {
	for key := range h.groups {
		h.groups[key] = nil
	}
	idle := h.ready
	for m, timer := range h.paused {
		timer.cancel()
		idle = append(idle, m)
	}
	h.ready = nil
	h.paused = map[*Message]*timer{}
	h.begun = map[*Message]bool{}
	for _, m := range messages {
		m.isLost = true
		m.lose()
	}
	for _, m := range idle {
		h.release(m)
	}
}

// unsaid counts the messages that have begun and that no settle over this connection has named.
func (h *handling) unsaid() int {
	count := 0
	for m := range h.begun {
		if !m.isSaid {
			count++
		}
	}
	return count
}

func (h *handling) begunNumbers() []int64 {
	numbers := make([]int64, 0, len(h.begun))
	for m := range h.begun {
		numbers = append(numbers, m.Seq)
	}
	return numbers
}

func (h *handling) makeReady(m *Message) {
	at := sort.Search(len(h.ready), func(at int) bool { return h.ready[at].Seq > m.Seq })
	h.ready = append(h.ready, nil)
	copy(h.ready[at+1:], h.ready[at:])
	h.ready[at] = m
	h.fill()
}

func (h *handling) fill() {
	for h.isOn && h.running < h.concurrency && len(h.ready) > 0 {
		m := h.ready[0]
		h.ready = h.ready[1:]
		h.running++
		m.Calls++
		h.begun[m] = true
		h.owner.announce(m, func() { h.begin(m) })
	}
}

func (h *handling) begin(m *Message) {
	if m.isLost {
		h.called(m, nil)
		return
	}
	go func() {
		var outcome error = errors.New("the handler ended its goroutine")
		defer func() {
			if panicked := recover(); panicked != nil {
				outcome = fmt.Errorf("panic: %v", panicked)
				log.Printf("%v in the handler\n%s", outcome, debug.Stack())
			}
			h.loop.post(func() { h.called(m, outcome) })
		}()
		outcome = h.handler(m.lost, m)
	}()
}

func (h *handling) called(m *Message, err error) {
	h.running--
	switch {
	case m.isLost:
		h.release(m)
	case err == nil:
		h.end(m, nil)
	default:
		h.failed(m, err)
	}
	h.fill()
}

func (h *handling) failed(m *Message, err error) {
	var rejected *rejection
	var later *retry
	isRejected := errors.As(err, &rejected)
	counts := true
	if errors.As(err, &later) && later.isFree {
		counts = false
		m.Calls--
	}
	if isRejected || (counts && m.Calls >= h.attempts) {
		reason := err.Error()
		h.end(m, &reason)
		return
	}
	h.paused[m] = h.loop.later(h.pauseAfter(m, later), func() {
		delete(h.paused, m)
		h.makeReady(m)
	})
}

func (h *handling) pauseAfter(m *Message, later *retry) time.Duration {
	if later != nil {
		return later.pause
	}
	doublings := m.Calls - 1
	if doublings > 16 { // a millisecond has become more than the most by then
		doublings = 16
	}
	if pause := h.backoff << doublings; pause < backoffMax {
		return pause
	}
	return backoffMax
}

func (h *handling) end(m *Message, reason *string) {
	delete(h.begun, m)
	h.release(m)
	m.lose() // frees the context
	h.owner.ended(m, reason)
}

func (h *handling) release(m *Message) {
	if m.key == "" {
		return
	}
	waiting := h.groups[m.key]
	if len(waiting) == 0 {
		delete(h.groups, m.key)
		return
	}
	h.groups[m.key] = waiting[1:]
	h.makeReady(waiting[0])
}
