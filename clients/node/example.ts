import { GroupConsumer, RejectMessage, RetryLater, type Message } from './lib/index.js';

const consumer = new GroupConsumer('amqp://localhost/', 'orders', 'worker-1', { prefetch: 50 });
process.once('SIGTERM', () => consumer.stop());

async function handle(message: Message): Promise<void> {
  if (message.body.length === 0) throw new RejectMessage('an order without content');
  const answer = await fetch('http://shop.example/orders', {
    method: 'POST',
    body: message.body.toString(),
    headers: { 'x-epoch': String(message.epoch) },
    signal: message.signal,
  });
  if (answer.status === 503) throw new RetryLater(5_000, 'the shop is closed', { counts: false });
  if (!answer.ok) throw new Error(`the shop says ${answer.status}`);
}

await consumer.run(handle, { concurrency: 20 });
