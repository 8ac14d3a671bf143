package messagegroups

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// exampleOf docs/protocol.md: two copies, of which each takes half.
func exampleOf(t *testing.T) []byte {
	t.Helper()
	page, err := os.ReadFile("../../docs/protocol.md")
	must(t, err)
	found := regexp.MustCompile("```hex\n([^`]*)```").FindSubmatch(page)
	example, err := hex.DecodeString(strings.ReplaceAll(string(found[1]), "\n", ""))
	must(t, err)
	return example
}

// block is a value with its length before it.
func block(parts ...string) string {
	value := strings.Join(parts, "")
	return string(binary.BigEndian.AppendUint32(nil, uint32(len(value)))) + value
}

func short(text string) string { return string(rune(len(text))) + text }

func TestTheExampleOfABundle(t *testing.T) {
	messages, err := splitBundle(exampleOf(t))
	must(t, err)
	var found []string
	for _, m := range messages {
		found = append(found, fmt.Sprintf("%d %s %d %d %d %s", m.Seq, m.Group, m.Epoch, m.GroupSeq, m.Attempt, m.Body))
	}
	if wanted := []string{"100 a 7 1 1 paid", "101 a 7 2 1 sent"}; !reflect.DeepEqual(found, wanted) {
		t.Errorf("%q", found)
	}
}

func TestOfABundleThatCanNotBeReadNothingCounts(t *testing.T) {
	example := exampleOf(t)
	unknown := bytes.Replace(example, []byte("group-seql"), []byte("group-seq?"), -1)
	bad := [][]byte{[]byte(block("\x20\x00", block()) + block()), unknown}
	for length := 1; length < len(example); length++ {
		if length != len(example)/2 {
			bad = append(bad, example[:length])
		}
	}
	for _, bundle := range bad {
		if messages, err := splitBundle(bundle); err == nil || messages != nil {
			t.Errorf("%x is taken for %d messages", bundle, len(messages))
		}
	}
}

func TestEveryTypeOfAHeader(t *testing.T) {
	for written, wanted := range map[string]any{
		"t\x01": true, "t\x00": false, "b\xff": int8(-1), "B\xff": uint8(255), "s\xff\xfe": int16(-2),
		"u\xff\xfe": uint16(65_534), "I\xff\xff\xff\xfe": int32(-2), "i\xff\xff\xff\xfe": uint32(4_294_967_294),
		"l\xff\xff\xff\xff\xff\xff\xff\xfe": int64(-2), "f\x3f\xc0\x00\x00": float32(1.5),
		"d\x3f\xf8\x00\x00\x00\x00\x00\x00": 1.5, "V": nil, "D\x02\x00\x00\x01\x3a": amqp.Decimal{Scale: 2, Value: 314},
		"T\x00\x00\x00\x00\x65\x92\x00\x80":                    time.Unix(1_704_067_200, 0),
		"S" + block("gr\xc3\xb6\xc3\x9fer"):                    "größer",
		"x" + block("\x00\xff"):                                []byte{0, 255},
		"A" + block("t\x01", "A", block(), "b\x03"):            []any{true, []any(nil), int8(3)},
		"F" + block(short("in"), "F", block(short("it"), "V")): amqp.Table{"in": amqp.Table{"it": nil}},
	} {
		r := reader{[]byte(block(short("key"), written, short("next"), "t\x01"))}
		if found := r.table(); !reflect.DeepEqual(found, amqp.Table{"key": wanted, "next": true}) {
			t.Errorf("%q is read as %#v", written, found)
		}
	}
}

func TestEveryProperty(t *testing.T) {
	list := "\xff\xfc" + short("text") + short("gzip") + block(short("h"), "b\x01") + "\x01\x09"
	for _, text := range []string{"correlation", "reply", "1000", "message"} {
		list += short(text)
	}
	list += "\x00\x00\x00\x00\x65\x92\x00\x80"
	for _, text := range []string{"type", "user", "app", "cluster"} {
		list += short(text)
	}
	wanted := amqp.Delivery{
		ContentType: "text", ContentEncoding: "gzip", Headers: amqp.Table{"h": int8(1)}, DeliveryMode: 1, Priority: 9,
		CorrelationId: "correlation", ReplyTo: "reply", Expiration: "1000", MessageId: "message",
		Timestamp: time.Unix(1_704_067_200, 0), Type: "type", UserId: "user", AppId: "app",
	}
	r := reader{[]byte(list)}
	if found := r.properties(); !reflect.DeepEqual(found, wanted) || len(r.bytes) != 0 {
		t.Errorf("%+v, and %q is left", found, r.bytes)
	}
	r = reader{[]byte("\x00\x40\x00\x00\x00\x00\x65\x92\x00\x80")}
	if found := r.properties(); !reflect.DeepEqual(found, amqp.Delivery{Timestamp: wanted.Timestamp}) {
		t.Errorf("%+v", found)
	}
}

func TestAfterAGapTheRestOfABundleIsForgotten(t *testing.T) {
	example := exampleOf(t)
	half := len(example) / 2
	second := append(append([]byte{}, example[half:]...), example[:half]...) // number 2 of the group, then number 1
	for name, test := range map[string]struct {
		bundle []byte
		inHand int
	}{"in order": {example, 2}, "with a gap": {second, 0}} {
		l := &life{me: newIncarnation()}
		l.loop.wake = make(chan struct{}, 1)
		l.handling = newHandling(nil, 1, l, &l.loop)
		s := &session{}
		l.received(s, amqp.Delivery{Type: "dispatch.bundle", Body: test.bundle})
		if len(l.me.inHand) != test.inHand || s.isDeaf != (test.inHand == 0) {
			t.Errorf("%s: %d messages in hand", name, len(l.me.inHand))
		}
	}
}
