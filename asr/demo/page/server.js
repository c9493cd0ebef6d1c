// What the page asks the server for.

/** Returns the answer to a POST; rejects with an Error whose message can be shown. */
async function post(address, body, keepalive = false) {
  let answer;
  try {
    const headers = { "Content-Type": "application/octet-stream" };
    answer = await fetch(address, { method: "POST", headers, body, keepalive });
  } catch {
    throw new Error("The server does not answer. Is asr-demo still at work?");
  }
  const found = await answer.json().catch(() => ({ error: `The server answers with the code ${answer.status}.` }));
  if (!answer.ok) throw new Error(sentence(found.error));
  return found;
}

function sentence(text) {
  const whole = /[.!?]$/.test(text) ? text : `${text}.`;
  // a name of a file stays as it is
  return /^(only|this|the|there|at most|what) /.test(whole) ? whole[0].toUpperCase() + whole.slice(1) : whole;
}

export async function about() {
  return (await fetch("/about")).json();
}

export function transcribe(audio, name) {
  return post(`/transcribe?name=${encodeURIComponent(name)}`, audio);
}

const PACKET = [4, 256]; // fewest and most pieces of 2048 samples: sent at a time, a megabyte of two that are taken

/** Sends what is recorded while it is recorded, one packet after the other, and shows what is heard. */
export class LiveText {
  /** `show(lines, text)` is called with the final lines and what was heard since; `fail(message)` at most once. */
  constructor(rate, show, fail) {
    Object.assign(this, { rate, show, fail, waiting: [], lines: [], isOver: false });
  }

  push(piece) {
    if (this.isOver) return;
    this.waiting.push(piece);
    this.sending ??= this.sendWaiting().finally(() => (this.sending = undefined));
  }

  async sendWaiting() {
    await this.try(async () => {
      this.address ??= `/streams/${(await post(`/streams?rate_hz=${this.rate}`, "")).stream}`;
      while (this.waiting.length >= PACKET[0]) await this.send("");
    });
  }

  /** Sends the rest, and shows the last text. */
  async end() {
    await this.sending;
    while (this.waiting.length > PACKET[1]) await this.try(() => this.send(""));
    if (this.address) await this.try(() => this.send("?end=1"));
    this.isOver = true;
  }

  /** Tells the server that nothing more comes, because the page is left. */
  leave() {
    if (this.address && !this.isOver) post(`${this.address}?end=1`, "", true).catch(() => {});
  }

  async send(query) {
    const packet = new Blob(this.waiting.splice(0, PACKET[1]));
    const { text, is_final: isFinal } = await post(this.address + query, packet);
    if (isFinal && text) this.lines.push(text);
    this.show(this.lines, isFinal ? "" : text);
  }

  async try(work) {
    if (this.isOver) return;
    try {
      await work();
    } catch (error) {
      this.isOver = true;
      this.waiting = [];
      this.fail(error.message);
    }
  }
}
