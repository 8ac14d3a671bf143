package messagegroups

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	retryPause    = time.Second            // between attempts to connect and to join
	settlePause   = 5 * time.Millisecond   // settles of this time go together
	announcePause = 50 * time.Millisecond  // how long a message that was handed over before waits for a confirm
	takenPause    = 500 * time.Millisecond // how long one that has left waits for the dispatcher's last word
	offlinePause  = 30 * time.Second       // then the messages in hand count as lost
	begunMax      = 64                     // of more begun messages not every settle says which
	refusalsMax   = 2                      // of the login; amqp091-go calls one that broke meanwhile a refusal, too
)

type leaving int

const (
	staying leaving = iota
	toStop
	toBeginAnew
)

// life of a consumer, from Run to its end. Everything happens on the loop.
type life struct {
	Consumer
	loop         loop
	exchange     string
	userID       string
	me           *incarnation
	session      *session // nil: no connection
	former       *session // is closing
	handling     *handling
	leaving      leaving
	heartbeat    time.Duration // of the latest welcome
	settleTimer  *timer
	offlineTimer *timer
	begunSaidAt  time.Time
	gapAt        time.Time
	hasConnected bool
	refusals     int
	lastProblem  string
	err          error // that Run returns
}

func (l *life) run(ctx context.Context) error {
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-ctx.Done():
			l.loop.post(l.stop)
		case <-done:
		}
	}()
	l.loop.post(l.connect)
	l.loop.run()
	l.handling.lose(l.me.inHand) // there are none, but after an error
	l.offlineTimer.cancel()
	if l.former != nil {
		select {
		case <-l.former.closed:
		case <-time.After(time.Second):
		}
	}
	return l.err
}

func (l *life) end(err error) {
	l.err = err
	if l.session != nil {
		l.drop(l.session)
	}
	l.loop.end()
}

func (l *life) stop() {
	if l.leaving == toStop {
		return
	}
	l.leaving = toStop
	l.leave()
	if l.session == nil && l.me.isSettled() {
		l.end(nil)
	}
}

// --- the connection ---

// connect in the background; what comes of it comes to the loop.
func (l *life) connect() {
	if l.offlineTimer == nil {
		l.offlineTimer = l.loop.later(offlinePause, l.renew)
	}
	go func() {
		made, err := dial(l.URL, "consumer "+l.ID)
		isTaken := l.loop.post(func() {
			if err != nil {
				l.notConnected(err)
			} else {
				l.connected(made)
			}
		})
		if !isTaken && made != nil {
			made.close()
		}
	}()
}

func (l *life) notConnected(err error) {
	var told *amqp.Error
	if errors.As(err, &told) && (told.Code == amqp.AccessRefused || told.Code == amqp.NotAllowed) {
		l.refusals++
	} else {
		l.refusals = 0
	}
	switch {
	case l.refusals == refusalsMax && !l.hasConnected:
		l.end(&RefusedError{err.Error()})
	case l.leaving == toStop && l.me.isSettled():
		l.end(nil)
	default:
		l.tryAgain(err.Error(), retryPause)
	}
}

func (l *life) tryAgain(problem string, after time.Duration) {
	if problem != l.lastProblem {
		log.Printf("%s: %s; trying again", l.ID, problem)
	}
	l.lastProblem = problem
	l.loop.later(after, l.connect)
}

func (l *life) connected(s *session) {
	l.session = s
	l.hasConnected = true
	l.offlineTimer.cancel()
	l.offlineTimer = nil
	s.watch(events{
		over:      func(problem string) { l.loop.post(func() { l.over(s, problem) }) },
		confirmed: func(tag uint64) { l.loop.post(func() { l.confirmed(s, tag) }) },
	})
	l.me.forgetSaid()
	for m := range l.handling.begun {
		m.isSaid = false
	}
	if err := l.newQueue(s); err != nil {
		l.over(s, err.Error())
		return
	}
	if !l.me.isSettled() {
		l.settle(nil) // rule 6: first what was not confirmed, then the join
	}
	l.join(s)
	if l.leaving != staying {
		l.leave()
	}
}

func (l *life) newQueue(s *session) error {
	return s.newQueue(l.exchange, func(queue string, delivery amqp.Delivery) {
		l.loop.post(func() {
			if !s.isOver && queue == s.queue {
				l.received(s, delivery)
			}
		})
	})
}

// over : the connection is lost, or of no use any more.
func (l *life) over(s *session, problem string) {
	if s.isOver {
		return
	}
	l.drop(s)
	switch {
	case l.leaving == toStop && l.me.isSettled():
		l.end(nil)
	case s.wasWelcomed:
		l.tryAgain(problem, 0)
	default:
		l.tryAgain(problem, retryPause)
	}
}

func (l *life) drop(s *session) {
	s.isOver = true
	s.timer.cancel()
	l.handling.goOn(false)
	l.session, l.former = nil, s
	s.close()
}

// moveToNewQueue as in rule 4, and after `dispatch.taken`: over the same channel, with a join for it.
func (l *life) moveToNewQueue(s *session) {
	if s.isOver {
		return
	}
	former := s.tag
	if err := l.newQueue(s); err != nil {
		l.over(s, err.Error())
		return
	}
	l.join(s)
	if err := s.channel.Cancel(former, false); err != nil {
		l.over(s, err.Error())
	}
}

func (l *life) say(s *session, kind string, fields map[string]any, onConfirm func()) {
	if s.isOver {
		return
	}
	fields["type"], fields["consumer"], fields["incarnation"] = kind, l.ID, l.me.id
	body, err := json.Marshal(fields)
	if err != nil {
		panic(err) // there is nothing in it that can't be written
	}
	key, mode := "control", amqp.Persistent
	if kind == "heartbeat" {
		key, mode = "heartbeat", amqp.Transient
	}
	s.published++
	s.unconfirmed[s.published] = onConfirm
	err = s.channel.PublishWithContext(context.Background(), l.exchange+".in", key, true, false, amqp.Publishing{
		ContentType: "application/json", DeliveryMode: mode, UserId: l.userID, Body: body,
	})
	if err != nil {
		l.over(s, err.Error())
	}
}

func (l *life) confirmed(s *session, tag uint64) {
	if s.isOver { // a message that came back is confirmed as well
		return
	}
	act := s.unconfirmed[tag]
	delete(s.unconfirmed, tag)
	if act != nil {
		act()
	}
}

// --- joining and leaving ---

func (l *life) join(s *session) {
	l.me.n++
	l.unwelcome(s)
	every := retryPause
	if s.wasWelcomed {
		every = l.heartbeat
	}
	l.repeat(s, every, func() {
		held := make([][3]any, 0, len(l.me.inHand))
		for _, m := range l.me.inHand {
			held = append(held, [3]any{m.Seq, m.Group, m.id}) // bytes are written in base64, none as null
		}
		l.say(s, "join", map[string]any{
			"protocol": 1, "n": l.me.n, "queue": s.queue, "prefetch": l.Prefetch, "bundle": bundleLimits,
			"epoch": l.me.epoch, "in_hand": held,
		}, nil)
	})
}

func (l *life) unwelcome(s *session) {
	s.isWelcome = false
	s.timer.cancel()
	l.handling.goOn(false)
}

// repeat it now and every so often, instead of what was repeated before.
func (l *life) repeat(s *session, every time.Duration, act func()) {
	s.repeated = act
	act()
	l.repeatLater(s, every)
}

func (l *life) repeatLater(s *session, every time.Duration) {
	s.timer.cancel()
	if s.isOver {
		return
	}
	s.timer = l.loop.later(every, func() {
		l.repeatLater(s, every) // first: what is said may end the session
		s.repeated()
	})
}

func (l *life) beat(s *session) {
	numbers := make([]int64, 0, len(l.me.inHand))
	for seq := range l.me.inHand {
		numbers = append(numbers, seq)
	}
	fields := map[string]any{
		"queue": s.queue, "held": len(numbers), "last": l.me.last, "in_hand": rangesOf(numbers),
	}
	l.addBegun(fields)
	l.say(s, "heartbeat", fields, nil)
}

func (l *life) leave() {
	if l.session != nil {
		l.say(l.session, "leave", map[string]any{}, nil)
	}
	l.lookForEnd(takenPause)
}

// lookForEnd : when nothing is left, wait a little for the dispatcher's last word, then end, or begin anew.
func (l *life) lookForEnd(pause time.Duration) {
	if l.leaving == staying || !l.me.isSettled() || l.session == nil {
		return
	}
	me, s := l.me, l.session
	l.loop.later(pause, func() {
		if me != l.me || !me.isSettled() || s.isOver {
			return
		}
		if l.leaving == toStop {
			l.end(nil)
		} else if l.leaving == toBeginAnew {
			l.beginAnew(s)
		}
	})
}

func (l *life) beginAnew(s *session) {
	l.renew()
	l.moveToNewQueue(s)
}

// renew : everything in hand belongs to others now.
func (l *life) renew() {
	l.handling.lose(l.me.inHand)
	l.me = newIncarnation()
	if l.leaving == toBeginAnew {
		l.leaving = staying
	}
}

// --- what comes ---

func (l *life) received(s *session, delivery amqp.Delivery) {
	switch {
	case isCopy(delivery):
		l.copyCame(s, newMessage(delivery))
	case delivery.Type == "dispatch.bundle":
		l.bundleCame(s, delivery.Body)
	default:
		l.told(s, delivery)
	}
}

// bundleCame : of one that can't be read no copy counts. It is as if it had not come.
func (l *life) bundleCame(s *session, bundle []byte) {
	messages, err := splitBundle(bundle)
	if err != nil {
		log.Printf("%s: a bundle is ignored: %v", l.ID, err)
	}
	for _, m := range messages {
		l.copyCame(s, m)
	}
}

func (l *life) copyCame(s *session, m *Message) {
	if s.isOver || s.isDeaf {
		return
	}
	switch l.me.look(m) {
	case start:
		l.me.take(m)
		l.handling.add(m)
	case settleAgain:
		l.me.toSettle[m.Seq] = true
		l.settleSoon()
	case gap:
		l.missed(s)
	}
}

// missed : a copy got lost. What is missing comes again after a join with a new queue.
func (l *life) missed(s *session) {
	s.isDeaf = true
	l.unwelcome(s)
	var pause time.Duration
	now := time.Now()
	if now.Sub(l.gapAt) < retryPause {
		pause = retryPause // a second one at once
	}
	l.gapAt = now
	l.loop.later(pause, func() { l.moveToNewQueue(s) })
}

type answer struct {
	Incarnation string
	N           int64
	Heartbeat   int64
	Reason      string
	Retry       *struct {
		Attempts int
		Backoff  int64
	}
}

func (l *life) told(s *session, delivery amqp.Delivery) {
	var told answer
	if err := json.Unmarshal(delivery.Body, &told); err != nil {
		return // it is not the dispatcher's
	}
	if told.Incarnation != "" && told.Incarnation != l.me.id {
		return // late
	}
	switch delivery.Type {
	case "dispatch.welcome":
		if told.N == l.me.n {
			l.welcomed(s, told)
		}
	case "dispatch.wait":
		if told.N == l.me.n && !s.isWelcome {
			l.repeatLater(s, retryPause)
		}
	case "dispatch.rejoin":
		l.settle(nil)
		l.join(s)
	case "dispatch.taken":
		l.taken(s)
	case "dispatch.refused":
		l.end(&RefusedError{told.Reason})
	}
}

func (l *life) welcomed(s *session, told answer) {
	if s.isWelcome {
		return
	}
	s.isWelcome, s.wasWelcomed = true, true
	l.lastProblem = ""
	l.heartbeat = time.Duration(told.Heartbeat) * time.Millisecond
	if told.Retry != nil {
		l.handling.attempts = told.Retry.Attempts
		l.handling.backoff = time.Duration(told.Retry.Backoff) * time.Millisecond
	}
	l.repeat(s, l.heartbeat, func() { l.beat(s) })
	if l.handling.unsaid() > l.handling.concurrency {
		l.settleSoon()
	}
	l.handling.goOn(true)
}

func (l *life) taken(s *session) {
	if l.leaving != toStop {
		l.beginAnew(s)
		return
	}
	if !l.me.isSettled() {
		l.renew() // others have its messages
	}
	l.lookForEnd(0)
}

// --- settles ---

func (l *life) ended(m *Message, reason *string) {
	l.me.finish(m, reason)
	if l.me.isFull() && l.leaving == staying {
		l.leaving = toBeginAnew
		l.leave()
	}
	if len(l.me.inHand) == 0 || len(l.me.toSettle) >= l.Prefetch/2 {
		l.settle(nil)
	} else {
		l.settleSoon()
	}
}

// announce : a message that others may have died of is named first, and RabbitMQ has to know before it begins.
func (l *life) announce(m *Message, begin func()) {
	if l.handling.unsaid() > l.handling.concurrency {
		l.settleSoon()
	}
	if m.Attempt == 1 || m.Calls > 1 || len(l.handling.begun) > begunMax || l.session == nil {
		begin()
		return
	}
	isBegun := false
	once := func() {
		if !isBegun {
			isBegun = true
			begin()
		}
	}
	l.settle(once)
	l.loop.later(announcePause, once)
}

func (l *life) settleSoon() {
	if l.settleTimer == nil {
		l.settleTimer = l.loop.later(settlePause, func() { l.settle(nil) })
	}
}

func (l *life) settle(onConfirm func()) {
	l.settleTimer.cancel()
	l.settleTimer = nil
	if l.session == nil {
		return // the next connection begins with it
	}
	fields := map[string]any{}
	if begun := l.addBegunSometimes(fields); len(l.me.toSettle) == 0 && !begun {
		return
	}
	me := l.me
	acked, numbers := []int64{}, make([]int64, 0, len(me.toSettle))
	failed := []failure{}
	for seq := range me.toSettle {
		numbers = append(numbers, seq)
		me.unconfirmed[seq] = true
		if found, isFailure := me.failures[seq]; isFailure {
			failed = append(failed, found)
		} else {
			acked = append(acked, seq)
		}
	}
	me.toSettle = map[int64]bool{}
	fields["acked"], fields["failed"] = rangesOf(acked), failed
	l.say(l.session, "settle", fields, func() {
		for _, seq := range numbers {
			delete(me.unconfirmed, seq)
		}
		if onConfirm != nil {
			onConfirm()
		}
		if me == l.me {
			l.lookForEnd(takenPause)
		}
	})
}

func (l *life) addBegun(fields map[string]any) {
	fields["begun"], fields["concurrency"] = rangesOf(l.handling.begunNumbers()), l.handling.concurrency
}

// addBegunSometimes : of many begun messages not every settle says which, for that would cost more than it tells.
// Whether it says any.
func (l *life) addBegunSometimes(fields map[string]any) bool {
	count := len(l.handling.begun)
	now := time.Now()
	if count > begunMax && now.Sub(l.begunSaidAt) < settlePause*time.Duration(count)/begunMax {
		return false
	}
	l.begunSaidAt = now
	for m := range l.handling.begun {
		m.isSaid = true
	}
	l.addBegun(fields)
	return count > 0
}
