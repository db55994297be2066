// SPDX-License-Identifier: Apache-2.0
// The page of a server: what is said into the microphone, or stands in a file, goes to the model, and its outputs are drawn as they come.
import {Session, describe, listen} from "/millrace.js";

const mostCurves = 16, shownSteps = 600, pieceSeconds = 0.02;
const byId = (id) => document.getElementById(id);
const model = location.pathname.slice(1);  // none: the default
const url = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/${model || "stream"}`;
const token = () => byId("token").value.trim();

let server = null;    // what it takes and gives
let stopSending = null;
let curves = [];      // {label, color, values}
let drawn = true;

function say(state, text) {
  document.body.dataset.state = state;
  byId("status").textContent = text;
  const live = state === "live";
  byId("stop").disabled = !live;
  byId("file").disabled = live || !server;
  byId("microphone").disabled = live || !server || server.inputs[0].rate === undefined;
}

// ---- Outputs ----
const elements = (port) => port.shape.reduce((product, extent) => product * extent, 1);

function makeCurves(outputs) {
  curves = [];
  for (const port of outputs) {
    if (port.level !== undefined) continue;
    const count = elements(port);
    for (let i = 0; i < count && curves.length < mostCurves; ++i)
      curves.push({port: port.name, index: i, stride: count, label: count > 1 ? `${port.name}[${i}]` : port.name, values: []});
  }
  curves.forEach((curve, i) => { curve.color = `hsl(${Math.round(360 * i / curves.length + 210)} 70% 50%)`; });
  byId("legend").replaceChildren(...curves.map((curve) => {
    const item = document.createElement("li");
    item.textContent = `― ${curve.label}`;
    item.style.color = curve.color;
    return item;
  }));
}

function keep(result) {
  for (const curve of curves) {
    const values = result.outputs[curve.port];
    for (let step = 0; values && step < result.steps; ++step) curve.values.push(Number(values[step * curve.stride + curve.index]));
    if (curve.values.length > 2 * shownSteps) curve.values.splice(0, curve.values.length - shownSteps);
  }
  drawn = false;
}

function draw() {
  requestAnimationFrame(draw);
  if (drawn) return;
  drawn = true;
  const canvas = byId("curves"), pen = canvas.getContext("2d"), shown = curves.map((curve) => curve.values.slice(-shownSteps));
  const finite = shown.flat().filter(Number.isFinite);
  const least = finite.reduce((a, b) => Math.min(a, b), 0), most = finite.reduce((a, b) => Math.max(a, b), 1);
  const y = (value) => 8 + (canvas.height - 16) * (1 - (value - least) / (most - least));
  pen.clearRect(0, 0, canvas.width, canvas.height);
  pen.lineWidth = 2;
  shown.forEach((values, i) => {
    pen.strokeStyle = curves[i].color;
    pen.beginPath();
    values.forEach((value, step) => {
      if (Number.isFinite(value)) pen.lineTo((step + 1) * canvas.width / shownSteps, y(value));
    });
    pen.stroke();
  });
}

function showSegment({label, start, end}) {
  const item = document.createElement("li");
  item.textContent = `${label} ${start.toFixed(2)} s – ${end.toFixed(2)} s`;
  byId("segments").prepend(item);
}

// ---- A session ----
// From when the data that made up a row was sent to its result. `sent`: how much, and when; `covered`: how much the results so far needed.
class Lag {
  #sent = [];
  note(amount) { this.#sent.push({amount, at: performance.now()}); }
  show(covered) {
    while (this.#sent.length > 1 && this.#sent[0].amount < covered) this.#sent.shift();
    if (this.#sent.length > 0) byId("lag").textContent = `${Math.max(0, performance.now() - this.#sent[0].at).toFixed(0)} ms`;
  }
}

async function run(start, send) {
  try {
    say("live", "connecting");
    byId("segments").replaceChildren();
    const session = await Session.open(url, {token: token(), start: {session: "page", segments: true, ...start}});
    makeCurves(session.started.outputs);
    const seconds = session.started.inputs[0].step_seconds ?? 1, lag = new Lag();
    let steps = 0;
    const sending = send(session, lag);  // reads and sends at once
    sending.catch((error) => { say("failed", error.message); session.close(); });
    say("live", "live");
    for await (const message of session) {
      if (message.type === "segment") showSegment(message);
      if (message.type !== "result" || message.level !== undefined) continue;
      steps += message.steps;
      keep(message);
      lag.show(steps * seconds);
      document.body.dataset.steps = steps;
      byId("steps").textContent = steps;
    }
    await sending;
    say("ended", `ended after ${steps} steps`);
  } catch (error) {
    say("failed", error.message);
  } finally {
    if (stopSending) stopSending();
    stopSending = null;
  }
}

/** Sends what `next` gives, one piece each `milliseconds` (0: as fast as it goes out), until it gives null or Stop is pressed. */
async function sendPieces(session, next, milliseconds) {
  let stopped = false;
  stopSending = () => { stopped = true; };
  const begun = performance.now();
  for (let piece = 0; !stopped; ++piece) {
    const due = begun + piece * milliseconds - performance.now();
    if (due > 0) await new Promise((resolve) => setTimeout(resolve, due));
    while (session.waitingBytes > 1 << 18 && !stopped) await new Promise((resolve) => setTimeout(resolve, 5));
    if (stopped || !next(piece)) break;
  }
  session.end();
}

// ---- What is sent ----
const audioStart = (port) => ({inputs: {[port.name]: {format: "f32", rate: port.rate, channels: 1}}});

function useMicrophone() {
  const port = server.inputs[0];
  return run(audioStart(port), async (session, lag) => {
    let samples = 0;
    const stop = await listen(port.rate, (piece) => {
      samples += piece.length;
      lag.note(samples / port.rate);
      session.send(piece, port.name);
    });
    await new Promise((resolve) => { stopSending = resolve; });
    await stop();
    session.end();
  });
}

async function useSound(file) {
  const port = server.inputs[0];
  const sound = await new OfflineAudioContext(1, 1, port.rate).decodeAudioData(await file.arrayBuffer());
  const channels = Array.from({length: sound.numberOfChannels}, (_, i) => sound.getChannelData(i));
  const samples = channels[0].map((_, i) => channels.reduce((sum, channel) => sum + channel[i], 0) / channels.length);
  const size = Math.ceil(port.rate * pieceSeconds);
  return run(audioStart(port), (session, lag) => sendPieces(session, (piece) => {
    const part = samples.subarray(piece * size, (piece + 1) * size);
    if (part.length === 0) return false;
    lag.note(Math.min(samples.length, (piece + 1) * size) / port.rate);
    session.send(part, port.name);
    return true;
  }, 1000 * pieceSeconds));
}

const arrays = {
  f64: Float64Array, f32: Float32Array, i64: BigInt64Array, i32: Int32Array, i8: Int8Array, u8: Uint8Array, bool: Uint8Array, f16: Uint16Array,
};
const npyTypes = {"<f8": "f64", "<f4": "f32", "<f2": "f16", "<i8": "i64", "<i4": "i32", "|i1": "i8", "|u1": "u8", "|b1": "bool"};

function rowsOfNpy(buffer, port) {
  const view = new DataView(buffer), wide = view.getUint8(6) > 1;
  const length = wide ? view.getUint32(8, true) : view.getUint16(8, true), begin = wide ? 12 : 10;
  const head = new TextDecoder().decode(new Uint8Array(buffer, begin, length));
  const type = npyTypes[/'descr': *'([^']*)'/.exec(head)?.[1]];
  if (type !== port.dtype || /'fortran_order': *True/.test(head)) throw new Error(`expected rows of ${port.dtype} in C order, found ${head.trim()}`);
  return new Uint8Array(buffer.slice(begin + length));
}

function rowsOfCsv(text, port) {
  const numbers = text.split(/\r?\n/).filter((line) => line.trim() && !line.startsWith("#")).flatMap((line) => line.split(/[,;\t]/));
  if (!arrays[port.dtype] || port.dtype === "f16") throw new Error(`expected an input of numbers, found ${port.dtype}`);
  const convert = port.dtype === "i64" ? BigInt : Number;
  const values = numbers.map((text) => convert(text.trim()));
  if (values.some(Number.isNaN)) throw new Error("expected numbers between commas, found other text");
  return new Uint8Array(arrays[port.dtype].from(values).buffer);
}

async function useRows(file) {
  const port = server.inputs[0];
  const bytes = file.name.endsWith(".npy") ? rowsOfNpy(await file.arrayBuffer(), port) : rowsOfCsv(await file.text(), port);
  const row = elements(port) * (arrays[port.dtype]?.BYTES_PER_ELEMENT ?? 2);
  if (row === 0 || bytes.length % row !== 0) throw new Error(`expected rows of ${row} bytes, found ${bytes.length} bytes`);
  return run({}, (session, lag) => sendPieces(session, (at) => {
    const piece = bytes.subarray(at * row, (at + 1) * row);
    if (piece.length === 0) return false;
    lag.note(at + 1);
    session.send(piece, port.name);
    return true;
  }, 0));
}

// ---- The page ----
async function refresh() {
  if (server) return;
  try {
    server = await describe(url, {token: token()});
    const named = (ports) => ports.map((port) => `${port.name} ${port.dtype}[${port.shape.join(", ")}]`).join(", ");
    byId("model").textContent = `${model ? `${model}: ` : ""}${named(server.inputs)} → ${named(server.outputs)}`;
    if (server.inputs.length > 1) throw new Error("this page feeds models of one input; millrace stream feeds any");
    say("idle", "ready");
  } catch (error) {
    say("failed", `${error.message} (a server that asks for a token needs one above)`);
  }
}

let last = null;
async function poll() {
  try {
    const answer = await fetch(model ? `/now/${model}` : "/now", {headers: token() ? {Authorization: `Bearer ${token()}`} : {}});
    if (!answer.ok) return;
    const now = await answer.json();
    const ticks = last ? now.ticks - last.ticks : 0;
    byId("sessions").textContent = now.sessions;
    if (ticks > 0) byId("rows").textContent = ((now.rows - last.rows) / ticks).toFixed(1);
    last = now;
  } catch {
    last = null;  // the server is away: the session says so
  }
}

byId("microphone").onclick = () => useMicrophone();
byId("stop").onclick = () => { if (stopSending) stopSending(); };
byId("token").onchange = () => refresh();
byId("controls").onsubmit = (event) => event.preventDefault();
byId("file").onchange = async ({target}) => {
  const file = target.files[0];
  target.value = "";
  try {
    if (file) await (server.inputs[0].rate === undefined ? useRows(file) : useSound(file));
  } catch (error) {
    say("failed", error.message);
  }
};
draw();
refresh();
setInterval(() => { if (document.body.dataset.state === "live") poll(); }, 500);
