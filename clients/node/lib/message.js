// A message as a handler sees it, and what a handler may throw.

/** Thrown by a handler: no attempt will succeed. The message goes to the dead queue at once. */
export class RejectMessage extends Error {}

/** Thrown by a handler: call me again after this time. Without `counts` that uses up no attempt. */
export class RetryLater extends Error {
  constructor(delayMs, reason = 'not now', { counts = true } = {}) {
    super(reason);
    this.delayMs = delayMs;
    this.counts = counts;
  }
}

export class Message {
  #controller = new AbortController();
  calls = 0;
  lost = false;

  constructor({ content, properties }) {
    const headers = properties.headers;
    const number = (name) => headers[`x-dispatch-${name}`] ?? null;
    const coded = headers['x-dispatch-group-base64'];
    const text = headers['x-dispatch-group'];
    this.body = content;
    this.headers = headers;
    this.properties = properties;
    this.seq = number('seq');
    this.id = number('id');
    this.epoch = number('epoch') ?? 0;
    this.attempt = number('attempt') ?? 1;
    this.groupSeq = number('group-seq');
    this.group = null;
    if (coded !== undefined) this.group = Buffer.from(coded, 'base64');
    else if (text !== undefined) this.group = Buffer.from(text);
    this.key = this.group === null ? null : this.group.toString('base64');
    const deadline = number('deadline');
    this.deadline = deadline === null ? null : new Date(deadline);
  }

  get groupText() {
    return this.group === null ? null : this.group.toString();
  }

  /** Aborts when the message has gone to another consumer. */
  get signal() {
    return this.#controller.signal;
  }

  lose() {
    this.lost = true;
    this.#controller.abort();
  }
}
