/* The chat page of postroom. What anybody wrote becomes text nodes, never markup. */
"use strict";

const base = document.body.dataset.base;
const part = (name) => document.getElementById(name);
const log = part("log");
const scroll = part("scroll");
const text = part("text");
const HEADERS = { "Content-Type": "application/json", "X-Postroom": "1" };
const SILENCE = 45000;
const TYPING = 6000;
// By name: what one person could not send is not sent by who signs in next.
const UNSENT = `postroom-unsent ${document.body.dataset.name}`;

const entries = new Map(); // id -> {data, element, ...}: everything that is shown
let lastId = null;
let editing = null;
let typingEnds = 0;
let queue = Promise.resolve();

/* Words */

const INLINE = /`([^`\n]+)`|\*\*([^*\n]+)\*\*|https?:\/\/[^\s<>"'`]+/g;

function element(tag, className, content) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (content !== undefined) made.textContent = content;
  return made;
}

function link(address) {
  try {
    const url = new URL(address);
    if (url.protocol !== "http:" && url.protocol !== "https:") return null;
    const made = element("a", "", address);
    made.href = url.href;
    made.target = "_blank";
    made.rel = "noopener noreferrer nofollow";
    return made;
  } catch {
    return null;
  }
}

function words(said) {
  const made = element("div", "words");
  let last = 0;
  for (const found of said.matchAll(INLINE)) {
    let whole = found[0];
    let shown = null;
    if (found[1] !== undefined) shown = element("code", "", found[1]);
    else if (found[2] !== undefined) shown = element("strong", "", found[2]);
    else {
      whole = whole.replace(/[.,;:!?)\]}]+$/, "");
      shown = link(whole);
    }
    if (!shown) continue;
    made.append(said.slice(last, found.index), shown);
    last = found.index + whole.length;
  }
  made.append(said.slice(last));
  return made;
}

/* Text and fenced code, line by line. */
function render(said, into) {
  const parts = [];
  let lines = [];
  let fence = null;
  const end = () => {
    const content = lines.join("\n");
    if (fence) {
      const pre = element("pre");
      pre.tabIndex = 0;
      pre.append(element("code", "", content));
      parts.push(pre);
    } else if (content.trim()) parts.push(words(content.replace(/^\n+|\s+$/g, "")));
    lines = [];
  };
  for (const line of said.split("\n")) {
    const found = /^ {0,3}(`{3,}|~{3,})(.*)$/.exec(line);
    if (!fence && found && !(found[1][0] === "`" && found[2].includes("`"))) {
      end();
      fence = found[1];
    } else if (fence && found && found[1].startsWith(fence) && !found[2].trim()) {
      end();
      fence = null;
    } else lines.push(line);
  }
  end();
  into.replaceChildren(...parts);
}

/* Entries */

function place(shown) {
  let next = null;
  for (let one = log.lastElementChild; one; one = one.previousElementSibling) {
    if (one === shown.element) continue;
    if (entries.get(one.dataset.id).data.order <= shown.data.order) break;
    next = one;
  }
  if (shown.element.parentNode !== log || shown.element.nextElementSibling !== next) log.insertBefore(shown.element, next);
}

function show(data) {
  const stays = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;
  let shown = entries.get(data.id);
  if (!shown) {
    shown = { data, element: element("li"), body: element("div", "body"), choices: element("div", "choices") };
    shown.files = element("div", "files");
    shown.note = element("p", "note");
    shown.note.setAttribute("role", "status");
    shown.meta = element("p", "meta");
    const bubble = element("div", "bubble");
    bubble.append(shown.body, shown.files, shown.choices, shown.note);
    shown.element.append(bubble, shown.meta);
    shown.element.dataset.id = data.id;
    entries.set(data.id, shown);
  }
  shown.data = data;
  const wanted = data.gone ? "" : data.text;
  if (shown.rendered !== wanted || data.gone) {
    if (data.gone) shown.body.replaceChildren(element("div", "words", "taken back"));
    else render(wanted, shown.body);
    shown.rendered = wanted;
  }
  const classes = ["entry", data.kind];
  for (const one of ["draft", "gone"]) if (data[one]) classes.push(one);
  if (data.state) classes.push(data.state);
  shown.element.className = classes.join(" ");
  shown.element.setAttribute("aria-busy", data.draft ? "true" : "false");
  showFiles(shown);
  showMeta(shown);
  showChoices(shown);
  showNote(shown, shown.note.textContent);
  place(shown);
  part("empty").hidden = true;
  if (data.kind !== "message") typing(false);
  if (stays || data.state === "sending") scroll.scrollTop = scroll.scrollHeight;
  else if (data.kind !== "message") part("newest").hidden = false;
}

/* Files */

const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const MOST_FILES = 20;
let chosen = []; // what was uploaded and is not sent yet

const size = (bytes) => (bytes < 1000 ? `${bytes} B` : bytes < 1e6 ? `${Math.round(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);

function fileLink(file) {
  const made = element("a", "file");
  made.href = `${base}/files/${encodeURIComponent(file.id)}`;
  if (PICTURES.includes(file.type)) {
    const picture = element("img");
    picture.src = made.href;
    picture.alt = file.name;
    picture.addEventListener("load", () => {
      if (scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 400) scroll.scrollTop = scroll.scrollHeight;
    });
    made.target = "_blank";
    made.rel = "noopener";
    made.append(picture);
  } else {
    made.download = file.name;
    made.append(element("span", "file-name", file.name), element("span", "file-size", size(file.size)));
  }
  return made;
}

function showFiles(shown) {
  const files = shown.data.gone ? [] : shown.data.files || [];
  const key = JSON.stringify(files);
  if (shown.filesKey === key) return;
  shown.filesKey = key;
  shown.files.replaceChildren(...files.map(fileLink));
}

function showChosen(note) {
  const made = chosen.map((file) => {
    const one = element("li", "", file.name);
    one.append(button("Remove", "quiet", () => {
      chosen = chosen.filter((other) => other !== file);
      showChosen();
      text.focus();
    }));
    return one;
  });
  if (note) made.push(element("li", "note", note));
  part("chosen").replaceChildren(...made);
  part("chosen").hidden = !made.length;
}

async function upload(files) {
  let note = "";
  for (const file of files) {
    if (chosen.length >= MOST_FILES) {
      note = `${MOST_FILES} files are the most.`;
      break;
    }
    showChosen(`Uploading ${file.name}…`);
    try {
      const address = `${base}/files?name=${encodeURIComponent(file.name)}`;
      const answer = await fetch(address, { method: "POST", headers: { "X-Postroom": "1" }, body: file });
      if (answer.status === 401) return location.reload();
      const told = await answer.json();
      if (answer.ok) chosen.push(told);
      else note = `${file.name} was not taken: ${told.error.message}`;
    } catch {
      note = `${file.name} was not taken: the server cannot be reached`;
    }
  }
  showChosen(note);
  text.focus();
}

part("attach").addEventListener("click", () => part("file").click());
part("file").addEventListener("change", async () => {
  await upload([...part("file").files]);
  part("file").value = "";
});
text.addEventListener("paste", (event) => {
  if (event.clipboardData.files.length) {
    event.preventDefault();
    upload([...event.clipboardData.files]);
  }
});

function button(label, className, act) {
  const made = element("button", className, label);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

function showMeta(shown) {
  const { data } = shown;
  const states = { sending: "sending…", failed: data.reason || "not sent", kept: "kept" };
  const said = [];
  if (data.at) {
    const when = element("time", "", new Date(data.at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }));
    when.dateTime = new Date(data.at).toISOString();
    said.push(when);
  }
  if (data.edited && !data.gone) said.push(element("span", "", "changed"));
  if (data.kind === "message" && !data.gone) {
    const state = data.state || "kept";
    said.push(element("span", "state", data.answered && state === "kept" ? "read" : states[state]));
    if (state === "failed") {
      said.push(button("Send again", "quiet", () => deliver(data.id)));
      said.push(button("Discard", "quiet", () => discard(data.id)));
    } else if (state === "kept" && !data.answered) {
      said.push(button("Change", "quiet", () => edit(data.id)));
      said.push(button("Take back", "quiet", () => takeBack(data.id)));
    }
  }
  const key = JSON.stringify([data.at, data.edited, data.gone, data.state, data.answered, data.reason]);
  if (shown.metaKey === key) return; // so that a button keeps the focus while a draft grows
  shown.metaKey = key;
  shown.meta.replaceChildren(...said);
}

function showChoices(shown) {
  const key = JSON.stringify(shown.data.buttons || []);
  if (shown.choicesKey === key) return;
  shown.choicesKey = key;
  const made = (shown.data.buttons || []).map(({ label, value }) => button(label, "", () => press(shown, value)));
  shown.choices.replaceChildren(...made);
}

function showNote(shown, note) {
  // A card that has its answer says so itself.
  shown.note.textContent = shown.data.text.endsWith(note) ? "" : note;
}

/* What the person does */

const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (one) => one.toString(16).padStart(2, "0")).join("");

async function call(method, path, body) {
  let answer;
  try {
    const content = body === undefined ? undefined : JSON.stringify(body);
    answer = await fetch(base + path, { method, headers: HEADERS, body: content, signal: AbortSignal.timeout(30000) });
  } catch {
    return { ok: false, reason: "not sent: the server cannot be reached" };
  }
  let told = {};
  try {
    told = await answer.json();
  } catch {
    /* a proxy's page */
  }
  if (answer.status === 401) location.reload();
  return { ok: answer.ok, told, reason: `not sent: ${told.error ? told.error.message : answer.status}` };
}

function remember() {
  const unsent = [...entries.values()].filter(({ data }) => data.state === "sending" || data.state === "failed");
  sessionStorage.setItem(UNSENT, JSON.stringify(unsent.map(({ data }) => ({ id: data.id, text: data.text, at: data.at, files: data.files }))));
}

function stand(id, fields) {
  const shown = entries.get(id);
  if (shown) show({ ...shown.data, ...fields });
  remember();
}

function deliver(id) {
  stand(id, { state: "sending", reason: "" });
  queue = queue.then(async () => {
    const shown = entries.get(id);
    if (!shown || shown.data.state !== "sending") return;
    const files = (shown.data.files || []).map((file) => file.id);
    const { ok, reason } = await call("POST", "/messages", { id, text: shown.data.text, files });
    if (entries.get(id).data.state === "sending") stand(id, ok ? { state: "kept" } : { state: "failed", reason });
  });
}

function say(said, files) {
  const id = newId();
  show({ id, kind: "message", text: said, files, at: Date.now(), order: Infinity, state: "sending" });
  deliver(id);
}

function discard(id) {
  entries.get(id).element.remove();
  entries.delete(id);
  remember();
  text.focus();
}

function edit(id) {
  editing = id;
  text.value = entries.get(id).data.text;
  part("editing").hidden = false;
  grow();
  text.focus();
}

function leaveEditing() {
  editing = null;
  text.value = "";
  part("editing").hidden = true;
  grow();
  text.focus();
}

async function change(id, said) {
  const { ok, reason } = await call("PUT", `/messages/${id}`, { text: said });
  if (ok) stand(id, { text: said, edited: true });
  else entries.get(id).note.textContent = reason.replace("not sent", "not changed");
}

async function takeBack(id) {
  const { ok, reason } = await call("DELETE", `/messages/${id}`);
  if (ok) stand(id, { text: "", gone: true });
  else entries.get(id).note.textContent = reason.replace("not sent", "not taken back");
  text.focus();
}

async function press(shown, value) {
  const all = [...shown.choices.children];
  for (const one of all) one.disabled = true;
  const { ok, told, reason } = await call("POST", "/buttons", { message_id: shown.data.id, value, press_id: newId() });
  showNote(shown, ok ? told.note : reason);
  if (!ok) for (const one of all) one.disabled = false;
}

function grow() {
  text.style.height = "auto";
  text.style.height = `${text.scrollHeight + 2}px`;
}

part("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const said = text.value.trim();
  if (!said && (editing || !chosen.length)) return;
  const id = editing;
  leaveEditing();
  if (id) return change(id, said);
  const files = chosen;
  chosen = [];
  showChosen();
  say(said, files);
});
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    part("composer").requestSubmit();
  } else if (event.key === "Escape" && editing) leaveEditing();
});
text.addEventListener("input", grow);
part("cancel").addEventListener("click", leaveEditing);
part("newest").addEventListener("click", () => {
  scroll.scrollTop = scroll.scrollHeight;
  text.focus();
});
scroll.addEventListener("scroll", () => {
  if (scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80) part("newest").hidden = true;
});

/* What the server says */

function typing(on) {
  typingEnds = on ? Date.now() + TYPING : 0;
  part("typing").hidden = !on;
  if (!on) return;
  setTimeout(() => {
    if (Date.now() >= typingEnds) part("typing").hidden = true;
  }, TYPING + 50);
  if (scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 120) scroll.scrollTop = scroll.scrollHeight;
}

function online(up) {
  part("link").textContent = up ? "Connected" : "Connecting again…";
  part("link").classList.toggle("up", up);
}

function take(event) {
  if (event.id) lastId = event.id;
  if (event.name === "typing") typing(true);
  else if (event.name === "entry") {
    const data = JSON.parse(event.data);
    show(data.kind === "message" ? { ...data, state: "kept" } : data);
    remember();
  } else if (event.name === "reset") {
    // What this page shows may be older than what there is; nothing grows here any more.
    for (const { data } of [...entries.values()]) if (data.draft) show({ ...data, draft: false });
  }
}

function parse(block) {
  const event = { name: "message", data: "" };
  for (const line of block.split("\n")) {
    const at = line.indexOf(":");
    if (at <= 0) continue;
    const value = line.slice(at + 1).replace(/^ /, "");
    if (line.startsWith("id:")) event.id = value;
    else if (line.startsWith("event:")) event.name = value;
    else if (line.startsWith("data:")) event.data += value;
  }
  return event;
}

async function read(body, alive) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    alive();
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) take(parse(block));
  }
}

async function listen() {
  let pause = 1000;
  for (;;) {
    const ends = new AbortController();
    let silence;
    const alive = () => {
      clearTimeout(silence);
      silence = setTimeout(() => ends.abort(), SILENCE);
    };
    try {
      alive();
      const headers = lastId ? { "Last-Event-ID": lastId } : {};
      const answer = await fetch(`${base}/events`, { headers, cache: "no-store", signal: ends.signal });
      if (answer.status === 401) return location.reload();
      if (answer.ok) {
        online(true);
        pause = 1000;
        await read(answer.body, alive);
      }
    } catch {
      /* cut off: again, after a pause */
    }
    clearTimeout(silence);
    online(false);
    await new Promise((go) => {
      setTimeout(go, pause);
      addEventListener("online", go, { once: true });
    });
    pause = Math.min(pause * 2, 30000);
  }
}

for (const { id, text: said, at, files } of JSON.parse(sessionStorage.getItem(UNSENT) || "[]")) {
  show({ id, kind: "message", text: said, at, files, order: Infinity, state: "failed", reason: "not sent" });
}
grow();
listen();
