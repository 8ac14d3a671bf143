// The program that `dispatcher conformance` drives: docs/protocol.md has the lines that go in and out.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"log"
	"os"
	"sync"

	"rabbitmq-group-consumer/messagegroups"
)

// line that comes in.
type line struct {
	Type                        string
	URL, Prefix, Lane, Consumer string
	Prefetch, Concurrency       int
	ID                          int64
	Outcome, Reason             string
}

// program keeps the calls that have not ended.
type program struct {
	mutex   sync.Mutex
	calls   int64
	waiting map[int64]chan line
	out     *json.Encoder
}

func main() {
	p := &program{waiting: map[int64]chan line{}, out: json.NewEncoder(os.Stdout)}
	ctx, stop := context.WithCancel(context.Background())
	lines := json.NewDecoder(bufio.NewReader(os.Stdin))
	for {
		var in line
		if err := lines.Decode(&in); err != nil {
			os.Exit(1) // nobody drives it any more
		}
		switch in.Type {
		case "start":
			go p.consume(ctx, in)
		case "stop":
			stop()
		case "end":
			p.mutex.Lock()
			if ended := p.waiting[in.ID]; ended != nil {
				ended <- in
			}
			p.mutex.Unlock()
		}
	}
}

func (p *program) consume(ctx context.Context, start line) {
	consumer := messagegroups.Consumer{
		URL: start.URL, Prefix: start.Prefix, Lane: start.Lane, ID: start.Consumer,
		Prefetch: start.Prefetch, Concurrency: start.Concurrency,
	}
	if err := consumer.Run(ctx, p.handle); err != nil {
		log.Fatal(err)
	}
	os.Exit(0)
}

func (p *program) handle(ctx context.Context, message *messagegroups.Message) error {
	ended := make(chan line, 1)
	id := p.begin(message, ended)
	defer func() {
		p.mutex.Lock()
		delete(p.waiting, id)
		p.mutex.Unlock()
	}()
	select {
	case end := <-ended:
		switch end.Outcome {
		case "reject":
			return messagegroups.Reject(end.Reason)
		case "raise":
			return errors.New(end.Reason)
		}
		return nil
	case <-ctx.Done():
		p.mutex.Lock()
		defer p.mutex.Unlock()
		return p.out.Encode(map[string]any{"type": "lost", "id": id})
	}
}

func (p *program) begin(message *messagegroups.Message, ended chan line) int64 {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.calls++
	p.waiting[p.calls] = ended
	err := p.out.Encode(map[string]any{
		"type": "begin", "id": p.calls, "seq": message.Seq, "group": message.Group, "group_seq": message.GroupSeq,
		"epoch": message.Epoch, "attempt": message.Attempt, "call": message.Calls, "body": string(message.Body),
	})
	if err != nil {
		log.Fatal(err)
	}
	return p.calls
}
