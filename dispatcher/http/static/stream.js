// The events of the dispatcher: opened again after every loss, closed while nobody sees the page.

/** Events come at least every five seconds: after this time the connection is lost, whatever it seems. */
const SILENCE_MS = 12_000;
const RETRY_MS = 2_000;

export class Stream {
  /** `onAnswer(path, status, body)`; `onState("live" | "lost" | "connecting")`, when it changes. */
  constructor(onAnswer, onState) {
    this.onAnswer = onAnswer;
    this.onState = onState;
    this.paths = [];
    this.state = "connecting";
    document.addEventListener("visibilitychange", () => document.hidden ? this.close() : this.open());
  }

  /** Hear of these paths from now on. */
  watch(paths) {
    if (this.source && paths.join("\n") === this.paths.join("\n")) return;
    this.paths = paths;
    this.open();
  }

  open() {
    this.close();
    if (document.hidden || !this.paths.length) return;
    const query = this.paths.map(path => `watch=${encodeURIComponent(path)}`).join("&");
    const source = this.source = new EventSource(`/api/events?${query}`);
    source.onmessage = event => {
      if (source !== this.source) return;
      const { path, status, body } = JSON.parse(event.data);
      this.heard();
      this.onAnswer(path, status, body);
    };
    source.onerror = () => {
      if (source !== this.source) return;
      this.tell("lost");
      if (source.readyState === EventSource.CLOSED) this.later(RETRY_MS); // it does not try again by itself
    };
    this.later(SILENCE_MS);
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  heard() {
    this.tell("live");
    this.later(SILENCE_MS);
  }

  later(ms) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.tell("lost");
      this.open();
    }, ms);
  }

  tell(state) {
    if (state === this.state) return;
    this.state = state;
    this.onState(state);
  }
}
