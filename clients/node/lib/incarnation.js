// What one life of a consumer knows: its messages in hand, and what it has seen (rule 4 of the protocol).
import { randomUUID } from 'node:crypto';
import { Ranges } from './ranges.js';

const REMEMBERED_MAX = 4096;
const GROUPS_MAX = 100_000;

export class Incarnation {
  id = randomUUID();
  n = 0; // of the latest join
  last = 0; // the highest number received
  epoch = 0; // the highest epoch received
  inHand = new Map(); // number → message, neither finished nor given up
  toSettle = new Set(); // finished, and not said over this connection
  unconfirmed = new Set(); // said, and not confirmed by RabbitMQ
  failures = new Map(); // number → {seq, reason, attempts}
  #finished = new Ranges();
  #groups = new Map(); // key → {epoch, number} of the last copy; the longest unused one is first
  #forgottenEpoch = 0;

  /** What to do with a copy: 'start', 'ignore', 'settle' again, or 'gap': one before it got lost. */
  look(message) {
    if (this.inHand.has(message.seq)) return 'ignore';
    if (this.#finished.has(message.seq)) return 'settle';
    return message.groupSeq === null || this.#follows(message) ? 'start' : 'gap';
  }

  #follows({ key, epoch, groupSeq }) {
    const last = this.#groups.get(key);
    if (last === undefined) return groupSeq === 1 || epoch <= this.#forgottenEpoch;
    if (epoch === last.epoch) return groupSeq === last.number + 1;
    return epoch > last.epoch && groupSeq === 1;
  }

  take(message) {
    this.inHand.set(message.seq, message);
    this.last = Math.max(this.last, message.seq);
    this.epoch = Math.max(this.epoch, message.epoch);
    if (message.groupSeq === null) return;
    this.#groups.delete(message.key);
    this.#groups.set(message.key, { epoch: message.epoch, number: message.groupSeq });
    if (this.#groups.size > GROUPS_MAX) {
      const [key, oldest] = this.#groups.entries().next().value;
      this.#groups.delete(key);
      this.#forgottenEpoch = Math.max(this.#forgottenEpoch, oldest.epoch);
    }
  }

  /** The message is done; with `failure` ({reason, attempts}) it is given up. */
  finish(seq, failure) {
    this.inHand.delete(seq);
    this.#finished.add(seq);
    if (failure !== undefined) this.failures.set(seq, { seq, ...failure });
    this.toSettle.add(seq);
  }

  /** What was said over a connection that is lost has to be said again. */
  forgetSaid() {
    for (const seq of this.unconfirmed) this.toSettle.add(seq);
    this.unconfirmed.clear();
  }

  get isSettled() {
    return this.inHand.size === 0 && this.toSettle.size === 0 && this.unconfirmed.size === 0;
  }

  /** It remembers so much that a new incarnation should go on. */
  get isFull() {
    return this.#finished.length > REMEMBERED_MAX || this.failures.size > REMEMBERED_MAX;
  }
}
