// Bundles: several copies in one message (docs/protocol.md). amqplib decodes the properties of no part of a message.

const PROPERTIES = Object.entries({
  contentType: 'text', contentEncoding: 'text', headers: 'table', deliveryMode: 'octet', priority: 'octet',
  correlationId: 'text', replyTo: 'text', expiration: 'text', messageId: 'text', timestamp: 'time', type: 'text',
  userId: 'text', appId: 'text', clusterId: 'text',
});

/** The copies, each as amqplib gives one that came alone. Throws an Error if any part can't be read. */
export function copiesOf(bundle) {
  const reader = new Reader(bundle);
  const copies = [];
  while (!reader.isAtEnd) copies.push({ properties: new Reader(reader.block()).properties(), content: reader.block() });
  return copies;
}

/** Reads on from where it is, to the same values as amqplib's own decoder. */
class Reader {
  #bytes;
  #at = 0;

  constructor(bytes) {
    this.#bytes = bytes;
  }

  get isAtEnd() {
    return this.#at >= this.#bytes.length;
  }

  take(length) {
    const end = this.#at + length;
    if (end > this.#bytes.length) throw new RangeError('it ends within a value');
    const taken = this.#bytes.subarray(this.#at, end);
    this.#at = end;
    return taken;
  }

  octet() {
    return this.take(1)[0];
  }

  block() {
    return this.take(this.take(4).readUInt32BE());
  }

  text() {
    return this.take(this.octet()).toString();
  }

  time() {
    return Number(this.take(8).readBigUInt64BE());
  }

  properties() {
    const flags = this.take(2).readUInt16BE();
    const read = ([name, type], at) => [name, flags & (0x8000 >> at) ? this[type]() : undefined];
    return Object.fromEntries(PROPERTIES.map(read));
  }

  table() {
    const reader = new Reader(this.block());
    const fields = {};
    while (!reader.isAtEnd) fields[reader.text()] = reader.value();
    return fields;
  }

  array() {
    const reader = new Reader(this.block());
    const values = [];
    while (!reader.isAtEnd) values.push(reader.value());
    return values;
  }

  value() {
    const type = String.fromCharCode(this.octet());
    switch (type) {
      case 'b': return this.take(1).readInt8();
      case 'B': return this.octet();
      case 's': return this.take(2).readInt16BE();
      case 'u': return this.take(2).readUInt16BE();
      case 'I': return this.take(4).readInt32BE();
      case 'i': return this.take(4).readUInt32BE();
      case 'l': return Number(this.take(8).readBigInt64BE());
      case 'f': return this.take(4).readFloatBE();
      case 'd': return this.take(8).readDoubleBE();
      case 't': return this.octet() !== 0;
      case 'V': return null;
      case 'S': return this.block().toString();
      case 'x': return this.block();
      case 'F': return this.table();
      case 'A': return this.array();
      case 'T': return { '!': 'timestamp', value: this.time() };
      case 'D': return { '!': 'decimal', value: { places: this.octet(), digits: this.take(4).readUInt32BE() } };
      default: throw new TypeError(`a header has the unknown type ${type}`);
    }
  }
}
