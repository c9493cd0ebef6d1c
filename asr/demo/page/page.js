// The page: a recording or a file goes to the server, and its transcript comes back.
import { Microphone } from "/microphone.js";
import { LiveText, about, transcribe } from "/server.js";
import { clock, element, hideTranscript, showTranscript } from "/transcript.js";

const byId = (id) => document.getElementById(id);
let model;
let microphone = null;
let live = null;
let levels = []; // of the last pieces, from 0 to 1

async function start() {
  try {
    model = await about();
  } catch {
    return say("The server does not answer. Is asr-demo still at work?");
  }
  const size = `${(model.num_parameters / 1e6).toFixed(1)} million parameters`;
  const heard = model.is_live ? "live text while you speak" : "text after you have spoken";
  byId("model").textContent = `${model.model} · ${model.encoder}, ${size} · ${heard}`;
  if (!model.is_live) byId("model").title = model.why_not_live;
  const [megabytes, minutes] = [model.max_upload_bytes / 1e6, model.max_duration_s / 60];
  byId("limits").textContent = `WAV, FLAC, MP3, Ogg … up to ${round(megabytes)} MB and ${round(minutes)} min`;
  byId("clock").textContent = `up to ${clock(limit()[0])}`;
  setBusy(false);
}

function round(number) {
  return Number(number.toPrecision(3)).toLocaleString("en");
}

/** Returns the seconds that may be recorded, and the option that says so. */
function limit(rate = 48_000) {
  const fitting = Math.floor(model.max_upload_bytes / (2 * rate));
  return fitting < model.max_duration_s ? [fitting, "max_upload_mb"] : [model.max_duration_s, "max_duration_s"];
}

/** Shows a message, perhaps with what can be done again, or with "" none. */
function say(message, again = null) {
  byId("alert").replaceChildren(message);
  byId("alert").hidden = !message;
  if (!again) return;
  const button = element("button", { type: "button", textContent: "Try again" });
  button.addEventListener("click", again);
  byId("alert").append(" ", button);
}

function setBusy(isBusy, text = "") {
  byId("record").disabled = byId("file").disabled = isBusy;
  byId("working").hidden = !isBusy;
  byId("working-text").textContent = text;
}

function clear() {
  say("");
  hideTranscript();
  byId("live").hidden = true;
  byId("hint").hidden = true;
  levels = [];
  draw();
}

async function show(audio, name, isRecorded = false) {
  say("");
  setBusy(true, `Transcribing ${name} …`);
  try {
    showTranscript(await transcribe(audio, name), audio);
    byId("live").hidden = true;
  } catch (error) {
    // what was spoken is not lost with an answer
    say(error.message, isRecorded ? () => show(audio, name, true) : null);
  }
  setBusy(false);
}

function take(files) {
  if (!files.length || byId("file").disabled) return;
  clear();
  const [file] = files;
  if (files.length > 1) say(`One file at a time: ${files.length} were given.`);
  else if (!file.size) say(`${file.name} is empty.`);
  else if (file.size > model.max_upload_bytes) {
    say(`${file.name} has ${round(file.size / 1e6)} MB, and at most ${round(model.max_upload_bytes / 1e6)} MB are taken (max_upload_mb). asr-transcribe takes larger files.`);
  } else show(file, file.name);
}

async function record() {
  clear();
  byId("record").disabled = byId("file").disabled = true;
  try {
    microphone = await Microphone.open(heard);
  } catch (error) {
    byId("record").disabled = byId("file").disabled = false;
    return say(error.message);
  }
  if (model.is_live) {
    live = new LiveText(microphone.rate, showLive, (message) => {
      byId("live-note").textContent = `Live text has stopped: ${message} The recording goes on.`;
      byId("live-note").hidden = false;
    });
    byId("live-note").hidden = true;
    showLive([], "");
    byId("live").hidden = false;
  }
  setRecording(true);
}

async function stop() {
  const recorded = microphone;
  microphone = null;
  setRecording(false);
  setBusy(true, "Transcribing …");
  const audio = await recorded.stop();
  await live?.end();
  live = null;
  byId("clock").textContent = `up to ${clock(limit()[0])}`;
  await show(audio, "recording.wav", true);
}

function setRecording(isRecording) {
  byId("record").disabled = false;
  byId("file").disabled = isRecording;
  byId("record").setAttribute("aria-pressed", String(isRecording));
  byId("record-state").textContent = isRecording ? "Stop" : "Record";
  document.body.classList.toggle("recording", isRecording);
  draw();
}

function heard(piece) {
  live?.push(piece);
  // as loud as the ear hears it: 60 dB from silence to full scale
  const power = piece.reduce((sum, value) => sum + (value / 32768) ** 2, 0) / Math.max(1, piece.length);
  levels.push(Math.max(0, 1 + Math.log10(power + 1e-10) / 6));
  draw();
  if (!microphone) return;
  const [seconds, reason] = limit(microphone.rate);
  byId("clock").textContent = `${clock(microphone.seconds)} / ${clock(seconds)}`;
  // some pieces before the limit, so that the server still takes the recording
  if (microphone.seconds > seconds - 0.5) {
    stop().then(() => byId("alert").hidden && say(`The recording has ended: at most ${clock(seconds)} are taken (${reason}).`));
  }
}

function draw() {
  const canvas = byId("levels");
  const [width, height] = [canvas.clientWidth, canvas.clientHeight].map((size) => Math.round(size * devicePixelRatio));
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  const step = 5 * devicePixelRatio;
  const colors = getComputedStyle(canvas);
  const bars = Math.floor(width / step);
  const last = levels.slice(-bars);
  for (let i = 0; i < bars; i++) {
    const level = last[i] ?? 0;
    const tall = Math.max(2 * devicePixelRatio, level * height);
    context.fillStyle = colors.getPropertyValue(i < last.length ? "--accent" : "--line");
    context.beginPath();
    context.roundRect(i * step, (height - tall) / 2, 3 * devicePixelRatio, tall, 1.5 * devicePixelRatio);
    context.fill();
  }
}

function showLive(lines, text) {
  byId("live-text").replaceChildren(lines.join(" "), " ", element("span", { textContent: text || (lines.length ? "" : "Speak now …") }));
}

byId("record").addEventListener("click", () => (microphone ? stop() : record()));
byId("file").addEventListener("change", ({ target }) => {
  take([...target.files]);
  target.value = ""; // so that the same file can be chosen again
});
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    byId("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop") take([...event.dataTransfer.files]);
  });
}
addEventListener("resize", draw);
addEventListener("pagehide", () => live?.leave());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
draw();
start();
