package messagegroups

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// bundleLimits : what the consumer takes as one AMQP message, at most.
var bundleLimits = map[string]int{"messages": 64, "bytes": 65_536}

var errTooShort = errors.New("it ends within a value")

// splitBundle gives its copies, each as amqp091-go gives one that came alone. If any part can't be read, none counts.
func splitBundle(bundle []byte) (messages []*Message, err error) {
	defer func() {
		if failure := recover(); failure != nil {
			problem, isOurs := failure.(error)
			if !isOurs {
				panic(failure)
			}
			messages, err = nil, problem
		}
	}()
	for r := (reader{bundle}); len(r.bytes) > 0; {
		list := reader{r.block()}
		delivery := list.properties()
		delivery.Body = r.block()
		if !isCopy(delivery) {
			return nil, errors.New("a part of it has no number")
		}
		messages = append(messages, newMessage(delivery))
	}
	return messages, nil
}

// reader of what is left. It panics with an error where it can't go on. amqp091-go's own one is not exported.
type reader struct{ bytes []byte }

func (r *reader) take(length int) []byte {
	if length > len(r.bytes) {
		panic(errTooShort)
	}
	taken := r.bytes[:length:length]
	r.bytes = r.bytes[length:]
	return taken
}

func (r *reader) uint8() uint8   { return r.take(1)[0] }
func (r *reader) uint16() uint16 { return binary.BigEndian.Uint16(r.take(2)) }
func (r *reader) uint32() uint32 { return binary.BigEndian.Uint32(r.take(4)) }
func (r *reader) uint64() uint64 { return binary.BigEndian.Uint64(r.take(8)) }
func (r *reader) block() []byte  { return r.take(int(r.uint32())) }
func (r *reader) text() string   { return string(r.take(int(r.uint8()))) }

func (r *reader) time() time.Time { return time.Unix(int64(r.uint64()), 0) }

func (r *reader) properties() (d amqp.Delivery) {
	flags := r.uint16()
	for at, read := range []func(){
		func() { d.ContentType = r.text() },
		func() { d.ContentEncoding = r.text() },
		func() { d.Headers = r.table() },
		func() { d.DeliveryMode = r.uint8() },
		func() { d.Priority = r.uint8() },
		func() { d.CorrelationId = r.text() },
		func() { d.ReplyTo = r.text() },
		func() { d.Expiration = r.text() },
		func() { d.MessageId = r.text() },
		func() { d.Timestamp = r.time() },
		func() { d.Type = r.text() },
		func() { d.UserId = r.text() },
		func() { d.AppId = r.text() },
		func() { r.text() }, // the cluster's id, which amqp091-go keeps to itself
	} {
		if flags&(0x8000>>at) != 0 {
			read()
		}
	}
	return d
}

func (r *reader) table() amqp.Table {
	entries := reader{r.block()}
	table := amqp.Table{}
	for len(entries.bytes) > 0 {
		key := entries.text()
		table[key] = entries.value()
	}
	return table
}

func (r *reader) array() []any {
	values := reader{r.block()}
	var array []any
	for len(values.bytes) > 0 {
		array = append(array, values.value())
	}
	return array
}

func (r *reader) value() any {
	switch kind := r.uint8(); kind {
	case 't':
		return r.uint8() != 0
	case 'b':
		return int8(r.uint8())
	case 'B':
		return r.uint8()
	case 's':
		return int16(r.uint16())
	case 'u':
		return r.uint16()
	case 'I':
		return int32(r.uint32())
	case 'i':
		return r.uint32()
	case 'l':
		return int64(r.uint64())
	case 'f':
		return math.Float32frombits(r.uint32())
	case 'd':
		return math.Float64frombits(r.uint64())
	case 'D':
		scale := r.uint8()
		return amqp.Decimal{Scale: scale, Value: int32(r.uint32())}
	case 'S':
		return string(r.block())
	case 'x':
		return r.block()
	case 'A':
		return r.array()
	case 'T':
		return r.time()
	case 'F':
		return r.table()
	case 'V':
		return nil
	default:
		panic(fmt.Errorf("a header has the unknown type %q", kind))
	}
}
