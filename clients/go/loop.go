package messagegroups

import (
	"sync"
	"time"
)

// loop has one goroutine do everything that touches a consumer's state. What happens elsewhere is handed to it, and
// nobody waits for that: amqp091-go can't go on before its notifications were taken.
type loop struct {
	mutex  sync.Mutex
	acts   []func()
	wake   chan struct{}
	isOver bool
}

// post an act; false: the loop is over, it will not be done.
func (l *loop) post(act func()) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.isOver {
		return false
	}
	l.acts = append(l.acts, act)
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return true
}

// run until `end` was called by one of the acts.
func (l *loop) run() {
	for range l.wake {
		l.mutex.Lock()
		acts := l.acts
		l.acts = nil
		l.mutex.Unlock()
		for _, act := range acts {
			act()
			if l.isOver {
				return
			}
		}
	}
}

func (l *loop) end() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.isOver = true
}

type timer struct {
	timer       *time.Timer
	isCancelled bool
}

func (l *loop) later(pause time.Duration, act func()) *timer {
	t := &timer{}
	t.timer = time.AfterFunc(pause, func() {
		l.post(func() {
			if !t.isCancelled {
				act()
			}
		})
	})
	return t
}

// cancel on the loop; afterwards the act is not done, also if its time has come already.
func (t *timer) cancel() {
	if t != nil {
		t.isCancelled = true
		t.timer.Stop()
	}
}
