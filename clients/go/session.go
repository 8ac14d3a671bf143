package messagegroups

import (
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// session is one connection.
type session struct {
	connection  *amqp.Connection
	channel     *amqp.Channel
	queue, tag  string
	queues      int
	published   uint64            // control messages; RabbitMQ's confirms count them
	unconfirmed map[uint64]func() // what is to be done when that one is confirmed
	timer       *timer            // of joins, or of heartbeats
	repeated    func()
	isWelcome   bool
	wasWelcomed bool
	isDeaf      bool // copies are forgotten
	isOver      bool
	closed      chan struct{}
}

// events of a session, as they come. They are called one after the other, and must not wait.
type events struct {
	over      func(problem string)
	confirmed func(tag uint64)
}

// dial makes a session with a channel that confirms.
func dial(url, name string) (*session, error) {
	connection, err := amqp.DialConfig(url, amqp.Config{
		Heartbeat: 10 * time.Second, // RabbitMQ's minute would leave a broken connection unseen
		Locale:    "en_US",
		Dial:      amqp.DefaultDial(10 * time.Second),
		Properties: amqp.Table{
			"product": "rabbitmq-group-consumer", "platform": "Go", "connection_name": name,
		},
	})
	if err != nil {
		return nil, err
	}
	s := &session{connection: connection, unconfirmed: map[uint64]func(){}, closed: make(chan struct{})}
	if s.channel, err = connection.Channel(); err == nil {
		err = s.channel.Confirm(false)
	}
	if err != nil {
		connection.Close()
		return nil, err
	}
	return s, nil
}

// watch what RabbitMQ says. One goroutine takes everything: a message that comes back is confirmed right after that.
func (s *session) watch(to events) {
	connection := s.connection.NotifyClose(make(chan *amqp.Error))
	channel := s.channel.NotifyClose(make(chan *amqp.Error))
	returns := s.channel.NotifyReturn(make(chan amqp.Return))
	cancels := s.channel.NotifyCancel(make(chan string))
	confirms := s.channel.NotifyPublish(make(chan amqp.Confirmation))
	go func() {
		for connection != nil || channel != nil || returns != nil || cancels != nil || confirms != nil {
			select {
			case problem, isOpen := <-connection:
				to.over(reasonOf(problem))
				if !isOpen {
					connection = nil
				}
			case problem, isOpen := <-channel:
				to.over(reasonOf(problem))
				if !isOpen {
					channel = nil
				}
			case _, isOpen := <-returns:
				if !isOpen {
					returns = nil
				} else {
					to.over("the dispatcher has not run yet")
				}
			case _, isOpen := <-cancels:
				if !isOpen {
					cancels = nil
				} else {
					to.over("RabbitMQ cancelled the consumer")
				}
			case confirm, isOpen := <-confirms:
				switch {
				case !isOpen:
					confirms = nil
				case confirm.Ack:
					to.confirmed(confirm.DeliveryTag)
				default:
					to.over("RabbitMQ did not take a control message")
				}
			}
		}
	}()
}

func reasonOf(problem *amqp.Error) string {
	if problem == nil {
		return "the connection was closed"
	}
	return problem.Error()
}

// newQueue makes a queue and reads it.
func (s *session) newQueue(exchange string, received func(queue string, delivery amqp.Delivery)) error {
	made, err := s.channel.QueueDeclare("", false, true, true, false, nil)
	if err != nil {
		return err
	}
	queue := made.Name
	if err := s.channel.QueueBind(queue, queue, exchange, false, nil); err != nil {
		return err
	}
	s.queues++
	tag := fmt.Sprint("queue-", s.queues)
	deliveries, err := s.channel.Consume(queue, tag, true, false, false, false, nil)
	if err != nil {
		return err
	}
	go func() {
		for delivery := range deliveries {
			received(queue, delivery)
		}
	}()
	s.queue, s.tag, s.isDeaf = queue, tag, false
	return nil
}

// close in the background: that asks RabbitMQ, which may not answer.
func (s *session) close() {
	go func() {
		defer close(s.closed)
		s.connection.Close()
	}()
}
