// The program that `dispatcher conformance` drives: docs/protocol.md has the lines that go in and out.
import { createInterface } from 'node:readline';
import { GroupConsumer, RejectMessage } from './lib/index.js';

const waiting = new Map(); // id of a call → how it ends
let consumer = null;
let calls = 0;

const write = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

async function handle(message) {
  const id = (calls += 1);
  const { seq, epoch, attempt } = message;
  const group = message.key;
  const groupSeq = message.groupSeq ?? 0;
  const call = message.calls;
  const body = message.body.toString();
  const ended = new Promise((end) => waiting.set(id, end));
  const lost = () => {
    write({ type: 'lost', id });
    waiting.get(id)({});
  };
  message.signal.addEventListener('abort', lost);
  write({ type: 'begin', id, seq, epoch, attempt, group, group_seq: groupSeq, call, body });
  const { outcome, reason } = await ended;
  waiting.delete(id);
  message.signal.removeEventListener('abort', lost);
  if (outcome === 'reject') throw new RejectMessage(reason);
  if (outcome === 'raise') throw new Error(reason);
}

async function start({ url, prefix, lane, consumer: id, prefetch, concurrency }) {
  consumer = new GroupConsumer(url, lane, id, { prefetch, prefix });
  await consumer.run(handle, { concurrency });
  process.exit(0);
}

createInterface({ input: process.stdin }).on('line', (text) => {
  const line = JSON.parse(text);
  if (line.type === 'start') start(line);
  else if (line.type === 'stop') consumer.stop();
  else if (line.type === 'end') waiting.get(line.id)?.(line); // a lost one has ended already
}).on('close', () => process.exit(1)); // nobody drives it any more
