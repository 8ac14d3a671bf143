// Bundles are read as docs/protocol.md says, and to the values that amqplib gives: `npm test`.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import defs from '../node_modules/amqplib/lib/defs.js'; // not exported
import { copiesOf } from '../lib/bundle.js';

const page = process.env.PROTOCOL_PAGE ?? new URL('../../../docs/protocol.md', import.meta.url);
const [, hex] = readFileSync(page, 'utf8').match(/```hex\n([^`]*)```/);
const example = Buffer.from(hex.replaceAll('\n', ''), 'hex');

const value = (type, value) => ({ '!': type, value });
const headers = {
  text: 'größer', bytes: Buffer.from([0, 255]), nothing: null, yes: true, no: false,
  int8: -128, uint8: value('uint8', 255), int16: -32_768, uint16: value('uint16', 65_535), int32: -(2 ** 31),
  uint32: value('uint32', 2 ** 32 - 1), int64: -(2 ** 53), float: value('float', 0.1), double: 0.1,
  time: value('timestamp', 2 ** 40), decimal: value('decimal', { places: 2, digits: 314 }),
  list: [1, 'two', [3], {}], empty: [], table: { in: { it: [null] } },
};
const everything = {
  contentType: 'text/plain', contentEncoding: 'gzip', headers, deliveryMode: 2, priority: 9, correlationId: 'c',
  replyTo: 'r', expiration: '1', messageId: 'm', timestamp: 2 ** 40, type: 't', userId: 'u', appId: 'a', clusterId: 'k',
};

/** A property list as amqplib writes it, without the frame around it. */
function listOf(properties) {
  const frame = defs.encodeProperties(defs.BasicProperties, 1, 0, properties);
  return frame.subarray(19, frame.length - 1);
}

function bundleOf(...fields) {
  const length = Buffer.alloc(4);
  return Buffer.concat(fields.flatMap((field) => {
    length.writeUInt32BE(field.length);
    return [Buffer.from(length), field];
  }));
}

test('the example of the page', () => {
  const found = copiesOf(example).map(({ properties, content }) => {
    const { headers } = properties;
    return [headers['x-dispatch-seq'], headers['x-dispatch-group'], headers['x-dispatch-group-seq'], `${content}`];
  });
  assert.deepEqual(found, [[100, 'a', 1, 'paid'], [101, 'a', 2, 'sent']]);
});

test('every type is what amqplib makes of it', () => {
  for (const properties of [everything, { headers }, { headers: {} }, { type: 't' }]) {
    const list = listOf(properties);
    const [copy] = copiesOf(bundleOf(list, Buffer.from('body')));
    assert.deepEqual(copy.properties, defs.decode(defs.BasicProperties, list));
    assert.equal(`${copy.content}`, 'body');
  }
});

test('no part of a bundle is read if one of them ends too early, or is of an unknown type', () => {
  for (let length = 1; length < example.length; length += 1) {
    if (length !== example.length / 2) assert.throws(() => copiesOf(example.subarray(0, length)), RangeError);
  }
  const list = listOf({ headers: { key: true } });
  for (let length = 0; length < list.length; length += 1) {
    assert.throws(() => copiesOf(bundleOf(list.subarray(0, length), Buffer.alloc(0))), RangeError);
  }
  list[list.length - 2] = 63;
  assert.throws(() => copiesOf(bundleOf(list, Buffer.alloc(0))), TypeError);
});
