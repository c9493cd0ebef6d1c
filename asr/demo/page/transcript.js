// Shows a transcript: words with their times and confidence, the recording that they are heard in, and files to save.

const byId = (id) => document.getElementById(id);
const SURE = 0.8, UNSURE = 0.5;
const NAMES = { txt: "Text", srt: "Subtitles", json: "JSON" };
let recording; // address of the audio that is shown
let shown = []; // words, each with its button
let until = Infinity; // seconds, where the playing of a word ends

export function element(kind, properties = {}, ...children) {
  const made = Object.assign(document.createElement(kind), properties);
  made.append(...children);
  return made;
}

export function clock(seconds, digits = 0) {
  const minutes = Math.floor(seconds / 60);
  return `${minutes}:${(seconds - 60 * minutes).toFixed(digits).padStart(digits ? 3 + digits : 2, "0")}`;
}

export function hideTranscript() {
  byId("result").hidden = true;
  byId("audio").removeAttribute("src");
  byId("audio").load();
  URL.revokeObjectURL(recording);
}

/** Shows what the server has found in a recording. */
export function showTranscript(found, audio) {
  recording = URL.createObjectURL(audio);
  byId("audio").hidden = false;
  byId("audio").src = recording;
  byId("result-name").textContent = found.name;
  const speed = found.duration_s / Math.max(found.work_s, 0.001);
  const words = found.segments.flatMap((segment) => segment.words);
  const facts = [clock(found.duration_s, 1), `transcribed in ${found.work_s.toFixed(1)} s (${speed.toFixed(0)}\u00a0×\u00a0real\u00a0time)`];
  if (words.length) facts.unshift(`${words.length} word${words.length === 1 ? "" : "s"}`);
  byId("result-facts").textContent = facts.join(" · ");
  const isEmpty = !found.segments.length;
  byId("result-note").textContent = [found.note, isEmpty ? "No speech was found in this recording." : ""].join(" ").trim();
  byId("result-note").hidden = !byId("result-note").textContent;
  shown = [];
  byId("transcript").replaceChildren(...found.segments.map((segment) => paragraph(segment, found.segments.length > 1)));
  byId("rows").replaceChildren(...words.map(row));
  byId("keys").hidden = byId("words").hidden = !words.length;
  byId("chosen").textContent = "Choose a word to hear it.";
  byId("downloads").hidden = isEmpty;
  byId("downloads").replaceChildren(...Object.entries(found.downloads).map(([ending, text]) => saveButton(found.name, ending, text)));
  byId("result").hidden = false;
}

function paragraph(segment, isTimed) {
  const said = element("p");
  for (const word of segment.words) {
    if (said.childNodes.length) said.append(" ");
    said.append(wordButton(word));
  }
  if (!segment.words.length) said.textContent = segment.text;
  if (!isTimed) return said;
  const place = element("time", { textContent: clock(segment.start), dateTime: `PT${segment.start}S` });
  return element("div", { className: "segment" }, place, said);
}

function wordButton(word) {
  const kind = word.confidence >= SURE ? "sure" : word.confidence >= UNSURE ? "unsure" : "doubtful";
  const told = `${word.start.toFixed(2)}–${word.end.toFixed(2)} s · ${percent(word)} confidence`;
  const button = element("button", { type: "button", className: `word ${kind}`, textContent: word.word, title: told });
  button.addEventListener("click", () => {
    byId("chosen").textContent = `${word.word}: ${told}`;
    play(word);
  });
  shown.push({ ...word, button });
  return button;
}

function play(word) {
  const audio = byId("audio");
  audio.currentTime = word.start;
  until = word.end;
  audio.play().catch(() => {}); // a format that the browser cannot play
}

function row(word) {
  const meter = element("meter", { low: UNSURE, high: SURE, optimum: 1, value: word.confidence, ariaHidden: "true" });
  const cells = [element("td", { textContent: word.start.toFixed(2) }), element("td", { textContent: word.end.toFixed(2) })];
  return element(
    "tr",
    {},
    element("th", { scope: "row", textContent: word.word }),
    ...cells,
    element("td", {}, meter, percent(word)),
  );
}

function percent(word) {
  return `${Math.floor(100 * word.confidence)} %`;
}

function saveButton(name, ending, text) {
  const button = element("button", { type: "button", textContent: `↓ ${NAMES[ending] ?? ending}`, title: `Save as .${ending}` });
  button.addEventListener("click", () => {
    const address = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
    element("a", { href: address, download: `${name.replace(/\.[^.]*$/, "") || "transcript"}.${ending}` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
  });
  return button;
}

function follow() {
  const audio = byId("audio");
  if (audio.currentTime >= until) {
    audio.pause();
    until = Infinity;
  }
  for (const { start, end, button } of shown) {
    button.classList.toggle("playing", !audio.paused && start <= audio.currentTime && audio.currentTime < end);
  }
  if (!audio.paused) requestAnimationFrame(follow);
}

byId("audio").addEventListener("play", follow);
byId("audio").addEventListener("pause", () => {
  until = Infinity;
  follow();
});
byId("audio").addEventListener("error", () => {
  byId("audio").hidden = true;
  if (byId("audio").hasAttribute("src")) byId("chosen").textContent = "This browser cannot play the recording.";
});
