// The events of the dispatcher: opened again after every loss, closed while nobody sees the page.

/** Events come at least every five seconds: after this time the connection is lost, whatever it seems. */
const SILENCE_MS = 12_000;
const RETRY_MS = 2_000;
/** Where the tab keeps its token. */
const TOKEN = "token";

export class Stream {
  /** `onAnswer(path, status, body)`; `onState("live" | "lost" | "connecting")`, when it changes; `onRefused()`
   * when a token is needed, or is wrong. */
  constructor(onAnswer, onState, onRefused) {
    this.onAnswer = onAnswer;
    this.onState = onState;
    this.onRefused = onRefused;
    this.token = sessionStorage.getItem(TOKEN);
    this.paths = [];
    this.state = "connecting";
    document.addEventListener("visibilitychange", () => document.hidden ? this.close() : this.open());
  }

  /** Read with this token from now on, as long as the tab is open. */
  use(token) {
    this.token = token;
    sessionStorage.setItem(TOKEN, token);
    this.open();
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
    if (this.token) return this.read(`/api/events?${query}`);
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
      if (source.readyState !== EventSource.CLOSED) return; // it tries again by itself
      this.later(RETRY_MS);
      fetch("/api/lanes").then(answer => answer.status === 401 && source === this.source && this.refuse(), () => {});
    };
    this.later(SILENCE_MS);
  }

  /** The same with a token, which an EventSource can't send. */
  async read(url) {
    const source = this.source = new AbortController();
    source.close = source.abort;
    this.later(SILENCE_MS);
    try {
      const headers = { Authorization: `Bearer ${this.token}` };
      const answer = await fetch(url, { headers, signal: source.signal });
      if (answer.status === 401) return this.refuse();
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = "", part; !(part = await reader.read()).done;) {
        const events = (rest + part.value).split("\n\n");
        rest = events.pop();
        for (const event of events.filter(each => each.startsWith("data: "))) {
          if (source !== this.source) return;
          const { path, status, body } = JSON.parse(event.slice("data: ".length));
          this.heard();
          this.onAnswer(path, status, body);
        }
      }
    } catch {
      // A loss: as when it ends by itself.
    }
    if (source !== this.source) return;
    this.tell("lost");
    this.later(RETRY_MS);
  }

  refuse() {
    this.close();
    this.onRefused();
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
