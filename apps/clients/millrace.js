// SPDX-License-Identifier: Apache-2.0
// A client of `millrace serve` for browsers, one module without dependencies (docs/protocol.md):
//
//   const session = await Session.open("ws://localhost:8080/stream", {start: {session: "kitchen"}, token: "…"});
//   session.send(new Float32Array(40));          // rows of the input, in pieces of any size
//   session.end();
//   for await (const message of session) {       // results, segments, …; the last is `ended`
//     if (message.type === "result") console.log(message.seq, message.steps, message.outputs.y);
//   }
//
// An error that ends the session is thrown where its messages are read, as a ProtocolError with `code` and `retryAfterMs`.

export class ProtocolError extends Error {
  constructor(code, message, retryAfterMs) {
    super(`${code}: ${message}`);
    this.code = code;
    this.retryAfterMs = retryAfterMs;
  }
}

const half = (bits) => {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
};
const brain = (bits) => new Float32Array(new Uint32Array([bits << 16]).buffer)[0];

// Raw little-endian elements as numbers; i64 as BigInt.
const readers = {
  f32: (bytes) => new Float32Array(bytes), f64: (bytes) => new Float64Array(bytes),
  f16: (bytes) => Float32Array.from(new Uint16Array(bytes), half), bf16: (bytes) => Float32Array.from(new Uint16Array(bytes), brain),
  i64: (bytes) => new BigInt64Array(bytes), i32: (bytes) => new Int32Array(bytes), i8: (bytes) => new Int8Array(bytes),
  u8: (bytes) => new Uint8Array(bytes), bool: (bytes) => Array.from(new Uint8Array(bytes), (value) => value !== 0),
};

/** The rows of a binary result: `outputs` by name, each of `steps` rows, row-major. `ports`: the outputs of `started`. */
export function decodeResult(buffer, ports) {
  const view = new DataView(buffer), text = new TextDecoder();
  const result = {type: "result", seq: Number(view.getBigUint64(0, true)), steps: view.getUint32(8, true), outputs: {}};
  let at = 13;
  for (let left = view.getUint8(12); left > 0; --left) {
    const length = view.getUint8(at);
    const name = text.decode(new Uint8Array(buffer, at + 1, length));
    const bytes = view.getUint32(at + 1 + length, true);
    at += 5 + length;
    const port = ports.find((one) => one.name === name);
    if (!port) throw new ProtocolError("bad_message", `an output '${name}' that the server did not announce`);
    result.outputs[name] = readers[port.dtype](buffer.slice(at, at + bytes));
    if (port.level !== undefined) result.level = port.level;
    at += bytes;
  }
  if (at !== buffer.byteLength) throw new ProtocolError("bad_message", "a result whose length is not that of its outputs");
  return result;
}

export class Session {
  /** Resolves once the server took the session; `started` says what it takes and gives. Results come in binary unless `start` says otherwise. `model`: which
   *  of the server's; none: that of the address, else the default. */
  static open(url, {start = {}, token = "", model = ""} = {}) {
    const socket = new WebSocket(url, token ? ["millrace.v1", `bearer.${token}`] : []);
    socket.binaryType = "arraybuffer";
    const session = new Session(socket);
    socket.onopen = () => socket.send(JSON.stringify({type: "start", version: 1, reply: "binary", ...(model ? {model} : {}), ...start}));
    return session.#next().then((message) => {
      session.started = message;
      return session;
    });
  }

  #socket;
  #messages = [];  // that nobody has read
  #readers = [];   // who wait for one
  #failure = null;
  #over = false;

  constructor(socket) {
    this.#socket = socket;
    this.started = null;
    socket.onmessage = ({data}) => this.#take(data);
    socket.onclose = ({code, reason}) =>
      this.#fail(new ProtocolError("lost", `the connection closed (${code}${reason ? `: ${reason}` : ""})`));
  }

  /** Bytes of rows or samples: an ArrayBuffer or a typed array, little-endian. `input` is needed where the server has several. */
  send(data, input) {
    const bytes = ArrayBuffer.isView(data) ? new Uint8Array(data.buffer, data.byteOffset, data.byteLength) : new Uint8Array(data);
    if (this.started.inputs.length < 2) return this.#socket.send(bytes);
    const name = new TextEncoder().encode(input);
    const whole = new Uint8Array(1 + name.length + bytes.length);
    whole.set([name.length]);
    whole.set(name, 1);
    whole.set(bytes, 1 + name.length);
    this.#socket.send(whole);
  }
  /** Bytes that the browser has not handed to the network: a sender of a file waits while there are many. */
  get waitingBytes() { return this.#socket.bufferedAmount; }
  end() { this.#say({type: "end"}); }
  flush() { this.#say({type: "flush"}); }
  reset() { this.#say({type: "reset"}); }
  openLevel(level) { this.#say({type: "open", level}); }
  closeLevel(level) { this.#say({type: "close", level}); }
  /** Leaves without a word. */
  close() { this.#socket.close(); }

  /** Messages of the server until `ended`, which is given, too. */
  async *[Symbol.asyncIterator]() {
    for (;;) {
      const message = await this.#next();
      yield message;
      if (message.type === "ended") return;
    }
  }

  #say(message) { this.#socket.send(JSON.stringify(message)); }
  #next() {
    if (this.#messages.length > 0) return Promise.resolve(this.#messages.shift());
    if (this.#failure) return Promise.reject(this.#failure);
    return new Promise((resolve, reject) => this.#readers.push({resolve, reject}));
  }
  #take(data) {
    let message;
    try {
      message = typeof data === "string" ? JSON.parse(data) : decodeResult(data, this.started.outputs);
    } catch (error) {
      this.#fail(error);
      return this.close();
    }
    if (message.type === "error") return this.#fail(new ProtocolError(message.code, message.message, message.retry_after_ms));
    if (message.type === "started") this.started = message;  // before a result that is read with it
    if (message.type === "ended") this.#over = true;
    if (this.#readers.length > 0) this.#readers.shift().resolve(message);
    else this.#messages.push(message);
  }
  #fail(error) {
    if (this.#over) return;
    this.#over = true;
    this.#failure = error;
    for (const {reject} of this.#readers.splice(0)) reject(error);
  }
}

/** What a server takes and gives, by a session without data. */
export async function describe(url, {token = "", model = ""} = {}) {
  const session = await Session.open(url, {token, model, start: {reply: "none"}});
  session.end();
  for await (const message of session) void message;
  return session.started;
}

/** The microphone, as Float32Arrays of samples at `rate`, given to `take`; returns what stops it. `module` is the address of this file. */
export async function listen(rate, take, module = import.meta.url) {
  const media = await navigator.mediaDevices.getUserMedia({audio: {channelCount: 1}});
  const context = new AudioContext({sampleRate: rate});
  await context.audioWorklet.addModule(module);
  const node = new AudioWorkletNode(context, "millrace-capture", {numberOfOutputs: 0});
  node.port.onmessage = ({data}) => take(data);
  context.createMediaStreamSource(media).connect(node);
  await context.resume();
  return () => {
    for (const track of media.getTracks()) track.stop();
    return context.close();
  };
}

// On the thread of sound this file is the worklet's module: samples leave it in pieces of about 20 ms.
if (typeof AudioWorkletProcessor !== "undefined") {
  registerProcessor("millrace-capture", class extends AudioWorkletProcessor {
    #piece = new Float32Array(Math.ceil(sampleRate / 50 / 128) * 128);
    #filled = 0;
    process([channels]) {
      if (channels.length === 0) return true;
      this.#piece.set(channels[0], this.#filled);
      this.#filled += channels[0].length;
      if (this.#filled >= this.#piece.length) {
        this.port.postMessage(this.#piece.slice());
        this.#filled = 0;
      }
      return true;
    }
  });
}
