export { ConsumerRefused, GroupConsumer } from './consumer.js';
export { RejectMessage, RetryLater } from './message.js';
