package messagegroups

import (
	"context"
	"encoding/base64"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Message as a handler gets it.
type Message struct {
	Body []byte
	// Delivery has the headers and properties. There is nothing to ack: what the handler returns settles it.
	Delivery amqp.Delivery
	// Group as its producer sent it; nil without one.
	Group []byte
	// Epoch rises with every change of the group's owner: let a database refuse writes with an older one.
	Epoch int64
	// GroupSeq is 1, 2, 3 … within the group and epoch; 0 where nothing is in order.
	GroupSeq int64
	// Seq is its number in this incarnation of the consumer.
	Seq int64
	// Attempt counts hand-overs of this message, this one included.
	Attempt int64
	// Calls counts calls of the handler in this hand-over, this one included.
	Calls int
	// Deadline is when the message expires; zero: never.
	Deadline time.Time

	id     string
	key    string // the group, or empty: no group is
	isSaid bool   // a settle over this connection has named it as begun
	isLost bool   // as the loop knows it; handlers look at their context
	lost   context.Context
	lose   context.CancelFunc
}

func isCopy(delivery amqp.Delivery) bool {
	_, found := delivery.Headers["x-dispatch-seq"]
	return found
}

func newMessage(delivery amqp.Delivery) *Message {
	delivery.Acknowledger = nil // it came with autoAck: an ack would be an error that closes the channel
	number := func(name string, otherwise int64) int64 {
		if found, is := delivery.Headers["x-dispatch-"+name].(int64); is {
			return found
		}
		return otherwise
	}
	text := func(name string) string {
		found, _ := delivery.Headers["x-dispatch-"+name].(string)
		return found
	}
	m := &Message{
		Body: delivery.Body, Delivery: delivery, id: text("id"), key: text("group"),
		Seq: number("seq", 0), Epoch: number("epoch", 0), GroupSeq: number("group-seq", 0), Attempt: number("attempt", 1),
	}
	if coded, err := base64.StdEncoding.DecodeString(text("group-base64")); err == nil && len(coded) > 0 {
		m.key = string(coded)
	}
	if m.key != "" {
		m.Group = []byte(m.key)
	}
	if deadline := number("deadline", 0); deadline != 0 {
		m.Deadline = time.UnixMilli(deadline)
	}
	m.lost, m.lose = context.WithCancel(context.Background())
	return m
}
