package messagegroups

import (
	"container/list"
	"crypto/rand"
	"fmt"
)

const (
	rememberedMax = 4_096
	groupsMax     = 100_000
)

type look int

const (
	start look = iota
	ignore
	settleAgain
	gap
)

type failure struct {
	Seq      int64  `json:"seq"`
	Reason   string `json:"reason"`
	Attempts int    `json:"attempts"`
}

// lastCopy of a group.
type lastCopy struct {
	key           string
	epoch, number int64
}

// incarnation is what one life of a consumer knows: its messages in hand, and what it has seen (rule 4).
type incarnation struct {
	id             string
	n              int64              // of the latest join
	last           int64              // the highest number received
	epoch          int64              // the highest epoch received
	inHand         map[int64]*Message // neither finished nor given up
	toSettle       map[int64]bool     // finished, and not said over this connection
	unconfirmed    map[int64]bool     // said, and not confirmed by RabbitMQ
	failures       map[int64]failure  // of those that were given up
	finished       ranges
	groups         map[string]*list.Element
	byUse          *list.List // of lastCopy; the group that got something longest ago is first
	forgottenEpoch int64
}

func newIncarnation() *incarnation {
	return &incarnation{
		id: newUUID(), inHand: map[int64]*Message{}, toSettle: map[int64]bool{}, unconfirmed: map[int64]bool{},
		failures: map[int64]failure{}, groups: map[string]*list.Element{}, byUse: list.New(),
	}
}

func newUUID() string {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		panic(err) // there is no randomness: nothing can be done
	}
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// look says what to do with a copy.
func (i *incarnation) look(m *Message) look {
	switch {
	case i.inHand[m.Seq] != nil:
		return ignore
	case i.finished.has(m.Seq):
		return settleAgain
	case m.GroupSeq == 0 || i.follows(m):
		return start
	}
	return gap
}

func (i *incarnation) follows(m *Message) bool {
	found := i.groups[m.key]
	if found == nil {
		return m.GroupSeq == 1 || m.Epoch <= i.forgottenEpoch
	}
	before := found.Value.(lastCopy)
	if m.Epoch == before.epoch {
		return m.GroupSeq == before.number+1
	}
	return m.Epoch > before.epoch && m.GroupSeq == 1
}

func (i *incarnation) take(m *Message) {
	i.inHand[m.Seq] = m
	if m.Seq > i.last {
		i.last = m.Seq
	}
	if m.Epoch > i.epoch {
		i.epoch = m.Epoch
	}
	if m.GroupSeq == 0 {
		return
	}
	if former := i.groups[m.key]; former != nil {
		i.byUse.Remove(former)
	}
	i.groups[m.key] = i.byUse.PushBack(lastCopy{m.key, m.Epoch, m.GroupSeq})
	if len(i.groups) > groupsMax {
		forgotten := i.byUse.Remove(i.byUse.Front()).(lastCopy)
		delete(i.groups, forgotten.key)
		if forgotten.epoch > i.forgottenEpoch {
			i.forgottenEpoch = forgotten.epoch
		}
	}
}

// finish it: done, or given up with a reason.
func (i *incarnation) finish(m *Message, reason *string) {
	delete(i.inHand, m.Seq)
	i.finished = i.finished.with(m.Seq)
	if reason != nil {
		attempts := m.Calls
		if attempts < 1 {
			attempts = 1
		}
		i.failures[m.Seq] = failure{m.Seq, *reason, attempts}
	}
	i.toSettle[m.Seq] = true
}

// forgetSaid : what was said over a connection that is lost has to be said again.
func (i *incarnation) forgetSaid() {
	for seq := range i.unconfirmed {
		i.toSettle[seq] = true
	}
	i.unconfirmed = map[int64]bool{}
}

func (i *incarnation) isSettled() bool {
	return len(i.inHand) == 0 && len(i.toSettle) == 0 && len(i.unconfirmed) == 0
}

// isFull : it remembers so much that a new incarnation should go on.
func (i *incarnation) isFull() bool {
	return len(i.finished) > rememberedMax || len(i.failures) > rememberedMax
}
