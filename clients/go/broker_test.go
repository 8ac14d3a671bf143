package messagegroups

import (
	"context"
	"errors"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// These need RabbitMQ, and no dispatcher.
func brokerURL(t *testing.T) string {
	t.Helper()
	found := os.Getenv("DISPATCHER_RABBITMQ_URL")
	if found == "" {
		t.Skip("DISPATCHER_RABBITMQ_URL names no RabbitMQ")
	}
	return found
}

func nothing(context.Context, *Message) error { return nil }

// joinOf a consumer, as RabbitMQ has it. The consumer leaves then.
func joinOf(t *testing.T, consumer Consumer) amqp.Delivery {
	t.Helper()
	connection, err := amqp.Dial(consumer.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	channel, err := connection.Channel()
	must(t, err)
	exchange := consumer.Prefix + "." + consumer.Lane
	for _, name := range []string{exchange, exchange + ".in"} {
		must(t, channel.ExchangeDeclare(name, "direct", false, false, false, false, nil))
		defer channel.ExchangeDelete(name, false, false)
	}
	queue, err := channel.QueueDeclare("", false, true, true, false, nil)
	must(t, err)
	must(t, channel.QueueBind(queue.Name, "control", exchange+".in", false, nil))
	said, err := channel.Consume(queue.Name, "", true, true, false, false, nil)
	must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- consumer.Run(ctx, nothing) }()
	join := <-said
	stop()
	must(t, <-ended)
	return join
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestTheDefaultsAndWhoItIs(t *testing.T) {
	consumer := Consumer{URL: brokerURL(t), Prefix: "gotest", Lane: "lane", ID: "worker-1"}
	join := joinOf(t, consumer)
	if join.UserId != "" || join.DeliveryMode != amqp.Persistent {
		t.Errorf("%+v", join)
	}
	if body := string(join.Body); !strings.Contains(body, `"prefetch":50`) || !strings.Contains(body, `"worker-1"`) {
		t.Error(body)
	}
	consumer.StrictIdentity = true
	uri, err := amqp.ParseURI(consumer.URL)
	must(t, err)
	if found := joinOf(t, consumer).UserId; found != uri.Username {
		t.Errorf("the user is %q, not %q", found, uri.Username)
	}
}

func TestARefusedLoginEndsIt(t *testing.T) {
	t.Parallel() // RabbitMQ takes some seconds for each
	wrong, err := url.Parse(brokerURL(t))
	must(t, err)
	wrong.User = url.UserPassword("nobody", "wrong")
	err = Consumer{URL: wrong.String(), Lane: "lane", ID: "worker-1"}.Run(context.Background(), nothing)
	var refused *RefusedError
	if !errors.As(err, &refused) || !strings.Contains(refused.Reason, "password") {
		t.Error(err)
	}
}

func TestItLeavesAlsoWithoutABroker(t *testing.T) {
	ctx, stop := context.WithTimeout(context.Background(), time.Millisecond)
	defer stop()
	must(t, Consumer{URL: "amqp://127.0.0.1:1/", Lane: "lane", ID: "worker-1"}.Run(ctx, nothing))
}

func TestWhatIsWrongIsNamed(t *testing.T) {
	ctx := context.Background()
	err := Consumer{URL: "amqp://localhost/", Concurrency: -1}.Run(ctx, nothing)
	if err == nil || !strings.Contains(err.Error(), "Concurrency is -1") {
		t.Error(err)
	}
	err = Consumer{URL: "amqp://user:secret@localhost:port/"}.Run(ctx, nothing)
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
}
