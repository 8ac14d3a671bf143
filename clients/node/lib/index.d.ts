/** A message as a handler gets it. */
export interface Message {
  readonly body: Buffer;
  readonly headers: Record<string, unknown>;
  /** AMQP's properties, as amqplib has them. */
  readonly properties: Record<string, unknown>;
  /** The group as its producer sent it; null without one. */
  readonly group: Buffer | null;
  /** The same as text, for people. */
  readonly groupText: string | null;
  /** Rises with every change of the group's owner: let a database refuse writes with an older one. */
  readonly epoch: number;
  /** 1, 2, 3 … within the group and epoch; null where nothing is in order. */
  readonly groupSeq: number | null;
  /** Hand-overs of this message, this one included. */
  readonly attempt: number;
  /** Calls of the handler in this hand-over, this one included. */
  readonly calls: number;
  /** When the message expires; null: never. */
  readonly deadline: Date | null;
  /** The message has gone to another consumer: nothing that the handler does counts any more. */
  readonly lost: boolean;
  /** Aborts in that moment. */
  readonly signal: AbortSignal;
}

/** Resolving means: processed. Throwing means: call me again, as often as the lane's `retry.attempts` says. */
export type Handler = (message: Message) => Promise<void> | void;

export interface ConsumerOptions {
  /** How many messages may be unsettled at a time, 1 to 60,000 (50). */
  prefetch?: number;
  /** As in the dispatcher's configuration ("dispatch"). */
  prefix?: string;
  /** After this time without a connection the messages in hand count as lost (30,000). */
  offlineLimitMs?: number;
  /** For a lane with `strict_identity`: RabbitMQ checks that it is the URL's user who settles (false). */
  strictIdentity?: boolean;
  /** Gets one line when the connection is lost (console.warn). */
  log?: (line: string) => void;
}

export declare class GroupConsumer {
  /** `consumerId` is unique in the lane: segments of A-Z, a-z, 0-9, _ and -, joined by dots. */
  constructor(url: string, lane: string, consumerId: string, options?: ConsumerOptions);
  /**
   * Calls the handler for every message: at most `concurrency` at a time (10), never two of one group. Resolves
   * after `stop`, when everything in hand is settled. Rejects with ConsumerRefused.
   */
  run(handler: Handler, options?: { concurrency?: number }): Promise<void>;
  /** Leave: nothing new comes. */
  stop(): void;
}

/** Thrown by a handler: no call will succeed. The message goes to the dead queue at once. */
export declare class RejectMessage extends Error {}

/** Thrown by a handler: call me again after this time. With `counts: false` that call does not count. */
export declare class RetryLater extends Error {
  constructor(delayMs: number, reason?: string, options?: { counts?: boolean });
}

/** The dispatcher, or RabbitMQ at the first login, does not take this consumer. */
export declare class ConsumerRefused extends Error {}
