// A consumer of a lane: docs/protocol.md on amqplib. The rules that comments name are those of that page.
import { setTimeout as sleep } from 'node:timers/promises';
import amqp from 'amqplib';
import { copiesOf } from './bundle.js';
import { Handling } from './handling.js';
import { Incarnation } from './incarnation.js';
import { Message } from './message.js';
import { rangesOf } from './ranges.js';

const RETRY_MS = 1000; // between attempts to connect and to join
const SETTLE_MS = 5; // settles of this time go together
const ANNOUNCE_MS = 50; // how long a message that was handed over before waits for RabbitMQ's confirm
const BEGUN_MAX = 64; // of more begun messages not every settle says which
const BUNDLE = { messages: 64, bytes: 65_536 }; // what comes as one message, at most
const TAKEN_MS = 500; // how long a consumer that has left waits for the dispatcher's last word

/** The dispatcher, or RabbitMQ at the first login, does not take this consumer. */
export class ConsumerRefused extends Error {}

export class GroupConsumer {
  #me = new Incarnation();
  #session = null; // the present connection: {connection, channel, queue, …}
  #handling = null;
  #leaving = null; // 'stop': for good; 'renew': to go on as a new incarnation
  #settleTimer = null;
  #offlineTimer = null;
  #begunSaidAt = 0;
  #gapAt = 0;
  #hasConnected = false;

  constructor(url, lane, consumerId, options = {}) {
    const { prefetch = 50, prefix = 'dispatch', offlineLimitMs = 30_000, log = console.warn } = options;
    const { strictIdentity = false } = options;
    this.url = url;
    this.consumerId = consumerId;
    this.prefetch = prefetch;
    this.offlineLimitMs = offlineLimitMs;
    this.log = log;
    this.exchange = `${prefix}.${lane}`;
    this.userId = strictIdentity ? decodeURIComponent(new URL(url).username) || 'guest' : undefined;
  }

  /** Call the handler for every message, until `stop`; resolves when everything in hand is settled. */
  async run(handler, { concurrency = 10 } = {}) {
    if (!(concurrency >= 1)) throw new RangeError(`concurrency is ${concurrency}: it has to be at least 1`);
    this.#handling = new Handling(handler, concurrency, {
      announce: (message) => this.#announce(message),
      ended: (message, failure) => this.#ended(message, failure),
    });
    try {
      await this.#serveUntilDone();
    } finally {
      this.#isOnline(); // no timer is left, also after an error
      this.#handling.lose(this.#me.inHand.values());
    }
  }

  async #serveUntilDone() {
    let lastProblem = '';
    while (!this.#isDone()) {
      const problem = await this.#serve();
      if (problem.fatal) throw problem.fatal;
      if (this.#isDone()) break;
      if (problem.text !== lastProblem) this.log(`${this.consumerId}: ${problem.text}; trying again`);
      lastProblem = problem.text;
      if (!problem.wasWelcomed) await sleep(RETRY_MS); // else at once
    }
  }

  /** Leave: nothing new comes, and `run` resolves when everything in hand is settled. */
  stop() {
    if (this.#leaving === 'stop') return;
    this.#leaving = 'stop';
    this.#leave();
  }

  #isDone() {
    return this.#leaving === 'stop' && this.#me.isSettled;
  }

  // --- the connection ---

  /** One connection, until it ends; says what ended it. */
  async #serve() {
    const session = newSession();
    this.#offlineTimer ??= setTimeout(() => this.#renew(), this.offlineLimitMs);
    try {
      session.connection = await amqp.connect(withHeartbeat(this.url), {
        noDelay: true,
        timeout: 10_000,
        clientProperties: { connection_name: `consumer ${this.consumerId}` },
      });
      this.#hasConnected = true;
      session.connection.on('error', (error) => session.end(error));
      session.connection.on('close', () => session.end(new Error('the connection was closed')));
      session.channel = await session.connection.createConfirmChannel();
      session.channel.on('error', (error) => session.end(error));
      session.channel.on('close', () => session.end(new Error('the channel was closed')));
      session.channel.on('return', () => session.end(new Error('the dispatcher has not run yet')));
      this.#session = session;
      this.#isOnline();
      this.#me.forgetSaid();
      for (const message of this.#handling.begun) message.said = false;
      await this.#newQueue(session);
      if (!this.#me.isSettled) this.#settle(); // rule 6: first what was not confirmed, then the join
      this.#join(session);
      if (this.#leaving !== null) this.#leave();
      await session.ended;
    } catch (error) {
      session.end(error);
    }
    this.#session = null;
    this.#unwelcome(session);
    const closing = session.connection?.close().catch(() => {}); // it may be closed already
    await Promise.race([closing, sleep(RETRY_MS, undefined, { ref: false })]);
    return { ...session, fatal: session.fatal ?? this.#refusedLogin(session) };
  }

  #isOnline() {
    clearTimeout(this.#offlineTimer);
    this.#offlineTimer = null;
  }

  #refusedLogin({ text }) {
    if (this.#hasConnected) return null;
    if (/ACCESS[_-]REFUSED|NOT[_-]ALLOWED/.test(text)) return new ConsumerRefused(text);
    // amqplib does not repeat RabbitMQ's words about a vhost.
    const isVhost = text.includes('Expected ConnectionOpenOk; got <ConnectionClose');
    return isVhost ? new ConsumerRefused("RabbitMQ refuses the URL's vhost: it is missing, or not permitted") : null;
  }

  /** Make a queue and read it; the one before is dropped when the join for the new one was published. */
  async #newQueue(session) {
    const { channel } = session;
    const { queue } = await channel.assertQueue('', { exclusive: true, autoDelete: true, durable: false });
    await channel.bindQueue(queue, this.exchange, queue);
    session.queue = queue;
    session.isDeaf = false;
    const received = (delivery) => {
      if (delivery === null) session.end(new Error('RabbitMQ cancelled the consumer'));
      else if (session.queue === queue) this.#received(session, delivery);
    };
    session.tag = (await channel.consume(queue, received, { noAck: true })).consumerTag;
  }

  /** Rule 4, and after `dispatch.taken`: another queue over the same channel, and a join for it. */
  async #moveToNewQueue(session) {
    session.isDeaf = true;
    this.#unwelcome(session);
    session.moves += 1;
    if (session.moves > 1) return; // the one under way does it once more
    try {
      for (let done = 0; done < session.moves; ) {
        done = session.moves;
        const { tag } = session;
        await this.#newQueue(session);
        this.#join(session);
        await session.channel.cancel(tag);
      }
    } catch (error) {
      session.end(error);
    }
    session.moves = 0;
  }

  #say(session, type, fields, confirmed = () => {}) {
    const isHeartbeat = type === 'heartbeat';
    const body = { type, consumer: this.consumerId, incarnation: this.#me.id, ...fields };
    const { userId } = this;
    const options = { mandatory: true, persistent: !isHeartbeat, contentType: 'application/json', userId };
    const key = isHeartbeat ? 'heartbeat' : 'control';
    const onConfirm = (error) => {
      if (error) session.end(error);
      else if (!session.isOver) confirmed(); // one that came back is confirmed as well
    };
    try {
      session.channel.publish(`${this.exchange}.in`, key, Buffer.from(JSON.stringify(body)), options, onConfirm);
    } catch (error) {
      session.end(error);
    }
  }

  // --- joining and leaving ---

  #join(session) {
    this.#me.n += 1;
    this.#unwelcome(session);
    const everyMs = session.wasWelcomed ? session.heartbeatMs : RETRY_MS;
    this.#repeat(session, everyMs, () => {
      const held = [...this.#me.inHand.values()].map(({ seq, key, id }) => [seq, key, id]);
      const { n, epoch } = this.#me;
      const { queue } = session;
      const fields = { protocol: 1, n, queue, prefetch: this.prefetch, bundle: BUNDLE, epoch, in_hand: held };
      this.#say(session, 'join', fields);
    });
  }

  #unwelcome(session) {
    session.isWelcome = false;
    clearInterval(session.timer);
    this.#handling.goesOn = false;
  }

  /** Do it now and every so often, instead of what was repeated before. */
  #repeat(session, everyMs, act) {
    clearInterval(session.timer);
    session.timer = setInterval(act, everyMs);
    session.act = act;
    act();
  }

  #heartbeat(session) {
    const numbers = ascending(this.#me.inHand.keys());
    const fields = { queue: session.queue, held: numbers.length, last: this.#me.last, in_hand: rangesOf(numbers) };
    this.#say(session, 'heartbeat', { ...fields, ...this.#begun() });
  }

  #leave() {
    if (this.#session?.queue) this.#say(this.#session, 'leave', {});
    this.#lookForEnd();
  }

  /** When nothing is left: wait a little for the dispatcher's last word, then end, or begin anew. */
  #lookForEnd(hasLastWord = false) {
    const session = this.#session;
    if (this.#leaving === null || !this.#me.isSettled || session === null) return;
    const me = this.#me;
    const end = () => {
      if (me !== this.#me || !me.isSettled || session.isOver) return;
      if (this.#leaving === 'stop') session.end(new Error('it has left'));
      else this.#beginAnew(session);
    };
    if (hasLastWord) end();
    else setTimeout(end, TAKEN_MS).unref();
  }

  #beginAnew(session) {
    this.#renew();
    this.#moveToNewQueue(session);
  }

  /** Everything in hand belongs to others now. */
  #renew() {
    this.#handling.lose(this.#me.inHand.values());
    this.#me = new Incarnation();
    if (this.#leaving === 'renew') this.#leaving = null;
  }

  // --- what comes ---

  #received(session, delivery) {
    const { type } = delivery.properties;
    if (isCopy(delivery)) this.#copyCame(session, new Message(delivery));
    else if (type === 'dispatch.bundle') this.#bundleCame(session, delivery.content);
    else if (type?.startsWith('dispatch.')) this.#told(session, type, JSON.parse(delivery.content.toString()));
  }

  /** Of a bundle that can't be read no copy counts: it is as if it had not come. */
  #bundleCame(session, bundle) {
    let messages = [];
    try {
      const copies = copiesOf(bundle);
      if (!copies.every(isCopy)) throw new TypeError('a part of it has no number');
      messages = copies.map((copy) => new Message(copy));
    } catch (error) {
      this.log(`${this.consumerId}: a bundle is ignored: ${error.message}`);
    }
    for (const message of messages) this.#copyCame(session, message);
  }

  #copyCame(session, message) {
    if (session.isDeaf || session.isOver) return;
    switch (this.#me.look(message)) {
      case 'start':
        this.#me.take(message);
        this.#handling.add(message);
        break;
      case 'settle':
        this.#me.toSettle.add(message.seq);
        this.#settleSoon();
        break;
      case 'gap':
        this.#missed(session);
    }
  }

  /** A copy got lost: what is missing comes again after a join with a new queue. */
  async #missed(session) {
    session.isDeaf = true;
    this.#unwelcome(session);
    const isSecond = Date.now() - this.#gapAt < RETRY_MS;
    this.#gapAt = Date.now();
    if (isSecond) await sleep(RETRY_MS);
    if (!session.isOver) this.#moveToNewQueue(session);
  }

  #told(session, type, answer) {
    if (answer.incarnation !== undefined && answer.incarnation !== this.#me.id) return; // late
    switch (type) {
      case 'dispatch.welcome':
        if (answer.n === this.#me.n) this.#welcomed(session, answer);
        break;
      case 'dispatch.wait':
        if (answer.n === this.#me.n && !session.isWelcome) {
          clearInterval(session.timer);
          session.timer = setInterval(session.act, RETRY_MS);
        }
        break;
      case 'dispatch.rejoin':
        this.#settle();
        this.#join(session);
        break;
      case 'dispatch.taken':
        this.#taken(session);
        break;
      case 'dispatch.refused':
        session.fatal = new ConsumerRefused(answer.reason);
        session.end(session.fatal);
    }
  }

  #welcomed(session, { heartbeat, retry }) {
    if (session.isWelcome) return;
    session.isWelcome = session.wasWelcomed = true;
    session.heartbeatMs = heartbeat;
    if (retry !== undefined) this.#handling.retry = retry;
    this.#repeat(session, heartbeat, () => this.#heartbeat(session));
    if (this.#handling.unsaid > this.#handling.concurrency) this.#settleSoon();
    this.#handling.goesOn = true;
  }

  #taken(session) {
    if (this.#leaving === 'stop') {
      if (!this.#me.isSettled) this.#renew(); // others have its messages
      this.#lookForEnd(true);
    } else this.#beginAnew(session);
  }

  // --- settles ---

  #ended(message, failure) {
    this.#me.finish(message.seq, failure);
    if (this.#me.isFull && this.#leaving === null) {
      this.#leaving = 'renew';
      this.#leave();
    }
    const { size } = this.#me.toSettle;
    if (this.#me.inHand.size === 0 || size >= this.prefetch / 2) this.#settle();
    else this.#settleSoon();
  }

  /** Before a message begins: one that others may have died of is named first, and RabbitMQ has to know. */
  async #announce(message) {
    const { begun, unsaid, concurrency } = this.#handling;
    if (unsaid > concurrency) this.#settleSoon();
    if (message.attempt === 1 || message.calls > 1 || begun.size > BEGUN_MAX || this.#session === null) return;
    await Promise.race([new Promise((confirmed) => this.#settle(confirmed)), sleep(ANNOUNCE_MS)]);
  }

  #settleSoon() {
    this.#settleTimer ??= setTimeout(() => this.#settle(), SETTLE_MS);
  }

  #settle(confirmed = () => {}) {
    clearTimeout(this.#settleTimer);
    this.#settleTimer = null;
    const session = this.#session;
    const me = this.#me;
    if (!session?.queue) return; // the next connection begins with it
    const numbers = ascending(me.toSettle);
    const begun = this.#begunSometimes();
    if (numbers.length === 0 && !begun?.begun.length) return;
    me.toSettle.clear();
    for (const seq of numbers) me.unconfirmed.add(seq);
    const acked = rangesOf(numbers.filter((seq) => !me.failures.has(seq)));
    const failed = numbers.filter((seq) => me.failures.has(seq)).map((seq) => me.failures.get(seq));
    this.#say(session, 'settle', { acked, failed, ...begun }, () => {
      for (const seq of numbers) me.unconfirmed.delete(seq);
      confirmed();
      if (me === this.#me) this.#lookForEnd();
    });
  }

  #begun() {
    const numbers = ascending([...this.#handling.begun].map((message) => message.seq));
    return { begun: rangesOf(numbers), concurrency: this.#handling.concurrency };
  }

  /** Of many begun messages not every settle says which: that would cost more than it tells. */
  #begunSometimes() {
    const { begun } = this.#handling;
    const pauseMs = begun.size > BEGUN_MAX ? (SETTLE_MS * begun.size) / BEGUN_MAX : 0;
    if (Date.now() - this.#begunSaidAt < pauseMs) return undefined;
    this.#begunSaidAt = Date.now();
    for (const message of begun) message.said = true;
    return this.#begun();
  }
}

function newSession() {
  const session = { queue: null, timer: null, moves: 0, isWelcome: false, wasWelcomed: false, isOver: false };
  session.heartbeatMs = RETRY_MS;
  session.ended = new Promise((resolve) => {
    session.end = (error) => {
      session.text ??= error?.message ?? String(error);
      session.isOver = true;
      resolve();
    };
  });
  return session;
}

function isCopy({ properties }) {
  return properties.headers?.['x-dispatch-seq'] !== undefined;
}

function ascending(numbers) {
  return [...numbers].sort((a, b) => a - b);
}

/** RabbitMQ proposes a minute, in which a broken connection would stay unseen. */
function withHeartbeat(url) {
  const parsed = new URL(url);
  if (!parsed.searchParams.has('heartbeat')) parsed.searchParams.set('heartbeat', '10');
  return parsed.href;
}
