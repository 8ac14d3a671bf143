// Package messagegroups is a consumer of message groups in RabbitMQ: messages of one group come in order, one at a
// time, to one consumer; different groups run in parallel. It is docs/protocol.md on amqp091-go; the rules that
// comments name are those of that page.
package messagegroups

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Handler processes one message. With nil it is done. With an error the handler is called again after the lane's
// pause, as often as the lane's retry.attempts says; see Reject and RetryLater. A panic counts as an error.
//
// While the handler runs, its context ends when the message has gone to another consumer: nothing that the handler
// does counts any more.
type Handler func(context.Context, *Message) error

// Consumer says who consumes what. What is zero has its default.
type Consumer struct {
	// URL of RabbitMQ, as amqp091-go reads it.
	URL  string
	Lane string
	// ID is unique in the lane: segments of A-Z, a-z, 0-9, _ and -, joined by dots.
	ID string
	// Prefix as in the dispatcher's configuration: "dispatch".
	Prefix string
	// Prefetch is how many messages may be unsettled at a time, 1 to 60,000: 50.
	Prefetch int
	// Concurrency is how many handlers run at a time, at most: 10. Never two of one group.
	Concurrency int
	// StrictIdentity is needed where the lane sets strict_identity: RabbitMQ checks that it is the URL's user who
	// settles.
	StrictIdentity bool
}

// RefusedError is Run's when the dispatcher, or RabbitMQ at the first logins, does not take this consumer.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return "refused: " + e.Reason }

// Run calls the handler for every message. When the context ends it leaves: nothing new comes, and Run returns nil
// when everything in hand is settled. A lost connection is made anew; a RefusedError ends it.
func (c Consumer) Run(ctx context.Context, handler Handler) error {
	if c.Prefix == "" {
		c.Prefix = "dispatch"
	}
	if c.Prefetch == 0 {
		c.Prefetch = 50
	}
	if c.Concurrency == 0 {
		c.Concurrency = 10
	}
	if c.Concurrency < 0 {
		return fmt.Errorf("Concurrency is %d: it has to be at least 1", c.Concurrency)
	}
	uri, err := amqp.ParseURI(c.URL)
	if err != nil {
		var told *url.Error // says the whole URL, with its password
		if errors.As(err, &told) {
			err = told.Err
		}
		return fmt.Errorf("URL: %w", err)
	}
	life := &life{Consumer: c, exchange: c.Prefix + "." + c.Lane, me: newIncarnation(), heartbeat: retryPause}
	life.loop.wake = make(chan struct{}, 1)
	if c.StrictIdentity {
		life.userID = uri.Username
	}
	life.handling = newHandling(handler, c.Concurrency, life, &life.loop)
	return life.run(ctx)
}
