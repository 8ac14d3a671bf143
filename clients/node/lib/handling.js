// Calls the handler: groups side by side, one message of a group at a time, failing ones again in place.
import { RejectMessage, RetryLater } from './message.js';

const BACKOFF_MS_MAX = 60_000;

export class Handling {
  retry = { attempts: 3, backoff: 1000 }; // the lane's; a welcome says it
  begun = new Set(); // messages whose handler was called, those between two attempts included
  #ready = []; // messages that may begin, by their numbers
  #groups = new Map(); // key → the messages behind the one that is ready, running or between two attempts
  #paused = new Map(); // messages between two attempts → their timers
  #running = 0;
  #goesOn = false;

  /** `announce(message)` is awaited before a message begins; `ended(message, failure)` is told its outcome. */
  constructor(handler, concurrency, { announce, ended }) {
    this.handler = handler;
    this.concurrency = concurrency;
    this.announce = announce;
    this.ended = ended;
  }

  /** Whether anything may begin; what has begun goes on in any case. */
  set goesOn(yes) {
    this.#goesOn = yes;
    this.#fill();
  }

  add(message) {
    const waiting = message.key === null ? undefined : this.#groups.get(message.key);
    if (waiting !== undefined) {
      waiting.push(message);
      return;
    }
    if (message.key !== null) this.#groups.set(message.key, []);
    this.#makeReady(message);
  }

  /** These messages have gone to other consumers. Handlers that run still keep their group busy. */
  lose(messages) {
    for (const waiting of this.#groups.values()) waiting.length = 0;
    const idle = [...this.#ready, ...this.#paused.keys()];
    for (const timer of this.#paused.values()) clearTimeout(timer);
    this.#ready = [];
    this.#paused.clear();
    this.begun.clear();
    for (const message of idle) this.#release(message);
    for (const message of messages) message.lose();
  }

  /** Messages that have begun and that no settle over this connection has named. */
  get unsaid() {
    let count = 0;
    for (const message of this.begun) count += message.said ? 0 : 1;
    return count;
  }

  #makeReady(message) {
    let at = this.#ready.length;
    while (at > 0 && this.#ready[at - 1].seq > message.seq) at -= 1;
    this.#ready.splice(at, 0, message);
    this.#fill();
  }

  #fill() {
    while (this.#goesOn && this.#running < this.concurrency && this.#ready.length > 0) {
      this.#running += 1;
      this.#call(this.#ready.shift());
    }
  }

  async #call(message) {
    message.calls += 1;
    this.begun.add(message);
    let thrown = null;
    try {
      await this.announce(message);
      if (!message.lost) await this.handler(message);
    } catch (error) {
      thrown = error ?? new Error('the handler threw nothing');
    }
    this.#running -= 1;
    if (message.lost) this.#release(message);
    else if (thrown === null) this.#end(message);
    else this.#failed(message, thrown);
    this.#fill();
  }

  #failed(message, error) {
    const uncounted = error instanceof RetryLater && !error.counts;
    if (uncounted) message.calls -= 1;
    if (error instanceof RejectMessage || (!uncounted && message.calls >= this.retry.attempts)) {
      const reason = error instanceof Error ? error.message || error.name : String(error);
      this.#end(message, { reason, attempts: Math.max(1, message.calls) });
      return;
    }
    const doubled = this.retry.backoff * 2 ** Math.max(0, message.calls - 1);
    const delayMs = error instanceof RetryLater ? error.delayMs : Math.min(doubled, BACKOFF_MS_MAX);
    const again = () => {
      this.#paused.delete(message);
      this.#makeReady(message);
    };
    this.#paused.set(message, setTimeout(again, delayMs));
  }

  #end(message, failure) {
    this.begun.delete(message);
    this.#release(message);
    this.ended(message, failure);
  }

  #release(message) {
    if (message.key === null) return;
    const next = this.#groups.get(message.key).shift();
    if (next === undefined) this.#groups.delete(message.key);
    else this.#makeReady(next);
  }
}
