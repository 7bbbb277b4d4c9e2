/* The chat page of postroom. The server renders the Markdown of entries; everything else becomes text nodes. */
"use strict";

const base = document.body.dataset.base;
const part = (name) => document.getElementById(name);
const log = part("log");
const scroll = part("scroll");
const text = part("text");
const HEADERS = { "Content-Type": "application/json", "X-Postroom": "1" };
const SILENCE = 45000;
const TYPING = 6000;
const MIN_PAUSE = 1000;
const MAX_PAUSE = 30000;
const MAY_PASS = [401, 408, 425, 429]; // the statuses below 500 after which the same message may be accepted
const MAX_FILES = 20;
const LARGEST_FILE = 20000000;
const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
// The keys contain the person's name, so that unsent messages of one person are not sent by the next one who signs in.
const UNSENT = `postroom-unsent ${document.body.dataset.name}`;
const PRESSED = `postroom-pressed ${document.body.dataset.name}`;
const WRITTEN = `postroom-written ${document.body.dataset.name}`;

const hasFilesOf = ({ files }) => files.every((one) => one.id || one.blob); // a file that is neither uploaded nor held by this page is lost
const entries = new Map(); // id -> {data, element, ...}: the entries of the conversation that is shown
const unsent = new Map(JSON.parse(sessionStorage.getItem(UNSENT) || "[]").map((one) => [one.id, { ...one, order: Infinity, ...asReloaded(one) }]));
const pressed = new Map(JSON.parse(sessionStorage.getItem(PRESSED) || "[]").map((one) => [one.card, one])); // card -> the pressed button that is not sent yet
const writing = new Map(); // conversation -> the time until which an answer counts as being written there
const unread = new Set(); // conversations with an answer that was not shown yet
let conversations = [];
let hasMoreConversations = false;
let listsRead = 0;
let current = null; // the id of the conversation that is shown
let arriving = null; // changes that arrived while a conversation was being loaded
let hasOlder = false;
let isReadingOlder = false;
let isStopping = false;
let lastId = null;
let editing = null;
const uploads = new Map(); // conversation -> its files to send: {blob, name, size, type, id, sent, reason, isRefused, request, uploading}
const delivering = new Set(); // conversations whose unsent messages are being sent
let retry = 0; // the timer of the next attempt to send the unsent messages
let retryPause = MIN_PAUSE;
let events = null; // the open stream of events
let relisten = 0; // the timer of the next attempt to open it
let listenPause = MIN_PAUSE;
// State that survives a reload and a sign-in: the text that is being written in each conversation, the conversation that is
// shown, and the conversation that "New chat" opens.
const written = { texts: {}, shown: "", fresh: "", ...JSON.parse(sessionStorage.getItem(WRITTEN) || "{}") };

function element(tag, className, content) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (content !== undefined) made.textContent = content;
  return made;
}

function asReloaded({ files, isRefused }) {
  const isLost = !hasFilesOf({ files });
  const reason = isLost ? "not sent: the page was loaded again before its files were uploaded" : isRefused ? "not sent" : "not sent yet";
  return { state: "failed", reason, isRefused: isLost || isRefused };
}

function button(label, className, act) {
  const made = element("button", className, label);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

function iconButton(name, label, act) {
  const made = button("", "icon", act);
  made.setAttribute("aria-label", label);
  made.title = label;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  made.append(svg);
  return made;
}

const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (one) => one.toString(16).padStart(2, "0")).join("");

function note(said) {
  part("status").textContent = said;
}

async function call(method, path, body) {
  let answer;
  try {
    const content = body === undefined ? undefined : JSON.stringify(body);
    answer = await fetch(base + path, { method, headers: HEADERS, body: content, cache: "no-store", signal: AbortSignal.timeout(30000) });
  } catch {
    return answered(0);
  }
  const shown = answered(answer.status, await answer.json().catch(() => null));
  if (method === "POST" && shown.ok) reached();
  return shown;
}

function answered(given, told) {
  const status = told || given >= 400 ? given : 0; // a page from a proxy does not count as an answer
  if (status === 401) location.reload();
  const isRefused = status >= 400 && status < 500 && !MAY_PASS.includes(status);
  const reason = status ? told?.error?.message || String(status) : "the server cannot be reached";
  return { ok: status >= 200 && status < 300, isRefused, told: told || {}, reason };
}

/* Text: the server's HTML is inserted block by block, so that blocks that are already shown are not replaced. */

function copyButton(textOf) {
  const made = button("Copy", "quiet copy", async () => {
    try {
      await navigator.clipboard.writeText(textOf());
      made.textContent = "Copied";
    } catch {
      made.textContent = "Not copied";
    }
    setTimeout(() => (made.textContent = "Copy"), 2000);
  });
  return made;
}

function decorated(block) {
  if (block.nodeType !== Node.ELEMENT_NODE) return block;
  for (const link of block.querySelectorAll("a[href]")) link.target = "_blank";
  for (const pre of [...block.querySelectorAll("pre"), ...(block.matches("pre") ? [block] : [])]) {
    const box = element("div", "code");
    if (pre === block) block = box;
    else pre.replaceWith(box);
    const bar = element("div", "bar");
    bar.append(element("span", "language", pre.dataset.language || ""), copyButton(() => pre.textContent.replace(/\n$/, "")));
    box.append(bar, pre);
  }
  return block;
}

function render(shown) {
  const { data } = shown;
  if (data.gone || data.html === undefined) {
    shown.blocks = [];
    shown.body.replaceChildren(...(data.gone || data.text ? [element("div", "words", data.gone ? "deleted" : data.text)] : []));
    return;
  }
  const parsed = new DOMParser().parseFromString(data.html, "text/html").body;
  const found = [...parsed.childNodes].filter((one) => one.nodeType === Node.ELEMENT_NODE);
  const before = shown.blocks || [];
  let same = 0;
  if (!before.length) shown.body.replaceChildren();
  while (same < found.length && same < before.length && before[same].source.isEqualNode(found[same])) same += 1;
  for (const one of before.slice(same)) one.node.remove();
  const added = found.slice(same).map((one) => ({ source: one.cloneNode(true), node: decorated(one) }));
  shown.body.append(...added.map((one) => one.node));
  shown.blocks = [...before.slice(0, same), ...added];
}

/* Entries */

const isAtEnd = (within) => scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < within;
const toEnd = () => (scroll.scrollTop = scroll.scrollHeight);
let keepsEnd = true; // whether the newest message stays in sight when it, or the box below it, grows: until the person scrolls up
let lastTop = 0;
const showNewest = () => (part("newest").hidden = isAtEnd(80));
const sized = new ResizeObserver(() => {
  if (keepsEnd) toEnd();
  showNewest();
});
for (const one of [scroll, log]) sized.observe(one);

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
  const stays = isAtEnd(80);
  let shown = entries.get(data.id);
  const draft = data.replaces && entries.get(data.replaces);
  if (draft) {
    entries.delete(data.replaces);
    if (shown) draft.element.remove();
    else entries.set(data.id, (shown = draft)); // the answer replaces its draft in the same place
    shown.element.dataset.id = data.id;
  }
  if (!shown) {
    shown = { element: element("article"), body: element("div", "body"), choices: element("div", "choices"), files: element("div", "files"), made: {} };
    shown.note = element("p", "note");
    shown.note.setAttribute("role", "status");
    shown.meta = element("p", "meta");
    const bubble = element("div", "bubble");
    bubble.append(shown.body, shown.files, shown.choices, shown.note);
    shown.element.append(bubble, shown.meta);
    shown.element.dataset.id = data.id;
    shown.element.setAttribute("aria-label", { message: "You", answer: "Answer", card: "Question" }[data.kind] || "Message");
    entries.set(data.id, shown);
  }
  const before = shown.data;
  shown.data = data;
  if (!before || before.text !== data.text || before.html !== data.html || before.gone !== data.gone) render(shown);
  const classes = ["entry", data.kind];
  for (const one of ["draft", "gone", "failed"]) if (data[one]) classes.push(one);
  if (data.state) classes.push(data.state);
  if (data.kind === "message" && data.text.startsWith("/")) classes.push("command");
  shown.element.className = classes.join(" ");
  shown.element.setAttribute("aria-busy", data.draft ? "true" : "false");
  place(shown);
  showReasoning(shown);
  showFiles(shown);
  showMeta(shown);
  showChoices(shown);
  showNote(shown, shown.note.textContent);
  if (stays || data.state === "sending") toEnd();
  showNewest();
}

function showReasoning(shown) {
  const { reasoning: said, draft } = shown.data;
  if (!said && !shown.reasoning) return;
  if (!shown.reasoning) {
    shown.reasoning = element("details", "reasoning");
    shown.reasoning.append(element("summary"), element("div", "words"));
    shown.reasoning.setAttribute("aria-live", "off"); // the reasoning is not part of the answer
    shown.body.before(shown.reasoning);
  }
  const [summary, words] = shown.reasoning.children;
  const [title, before] = [draft && !shown.data.text ? "Reasoning…" : "Reasoning", words.textContent];
  shown.reasoning.hidden = !said;
  if (summary.textContent !== title) summary.textContent = title;
  if (!said.startsWith(before)) words.textContent = said;
  else if (said.length > before.length) words.append(said.slice(before.length)); // selected text stays selected
}

function settle() {
  document.body.classList.toggle("fresh", !entries.size && !hasOlder);
  part("older").hidden = !hasOlder;
  const last = log.lastElementChild;
  for (const one of entries.values()) one.element.classList.toggle("last", one.element === last);
  showBusy();
}

/* Returns whether a part of an entry was made from the same value. It is then kept, so that its buttons keep the focus. */
function isSame(shown, name, value) {
  const [before, now] = [shown.made[name], JSON.stringify(value)];
  shown.made[name] = now;
  return before === now;
}

function showFiles(shown) {
  const files = shown.data.gone ? [] : shown.data.files || [];
  if (isSame(shown, "files", files)) return;
  shown.files.replaceChildren(...files.map((file) => fileLink(file, shown.data.id)));
}

const size = (bytes) => (bytes < 1000 ? `${bytes} B` : bytes < 1e6 ? `${Math.round(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);

function fileLink(file, entry) {
  const made = element(file.id ? "a" : "span", "file");
  if (!file.id) {
    made.append(element("span", "", file.name), element("span", "file-size", size(file.size)));
    return made;
  }
  made.href = `${base}/files/${encodeURIComponent(file.id)}?entry=${encodeURIComponent(entry)}`;
  if (PICTURES.includes(file.type)) {
    const picture = element("img");
    picture.src = made.href;
    picture.alt = file.name;
    made.target = "_blank";
    made.rel = "noopener";
    made.append(picture);
  } else {
    made.download = file.name;
    made.append(element("span", "file-name", file.name), element("span", "file-size", size(file.size)));
  }
  return made;
}

function shownTime(at) {
  const when = new Date(at);
  const time = when.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  const made = element("time", "", when.toDateString() === new Date().toDateString() ? time : `${when.toLocaleDateString()}, ${time}`);
  made.dateTime = when.toISOString();
  return made;
}

function showMeta(shown) {
  const { data } = shown;
  if (isSame(shown, "meta", [data.at, data.edited, data.gone, data.state, data.answered, data.note, data.reason, data.draft, data.failed])) return;
  const said = data.at ? [shownTime(data.at)] : [];
  if (data.edited && !data.gone) said.push(element("span", "", "edited"));
  if (data.kind === "message" && !data.gone) {
    const state = data.state || "kept";
    const states = { sending: "sending…", failed: data.reason, kept: data.answered ? "read" : "sent" };
    said.push(element("span", "state", states[state]));
    if (data.note && !data.answered) said.push(element("span", "turn", data.note));
    if (state === "failed") {
      if (hasFilesOf(data)) said.push(button("Send again", "quiet", () => sendAgain(data.id)));
      said.push(button("Edit", "quiet", () => takeUp(data.id)));
      said.push(button("Discard", "quiet", () => discard(data.id)));
    } else if (state === "kept" && !data.answered) {
      said.push(button("Edit", "quiet", () => edit(data.id, shown.data.text)));
      said.push(button("Delete", "quiet", () => takeBack(data.id)));
    }
  } else if (data.kind === "answer" && !data.gone && !data.draft) {
    if (data.text) said.push(copyButton(() => shown.data.text));
    if (data.failed) said.push(button("Try again", "quiet again", () => say("/retry", [], current)));
  }
  shown.meta.replaceChildren(...said);
}

function showChoices(shown) {
  const [buttons, one] = [shown.data.buttons || [], pressed.get(shown.data.id)];
  if (isSame(shown, "choices", [buttons, one])) return;
  const made = buttons.map(({ label, value }) => button(label, "", () => press(shown.data.id, label, value)));
  for (const each of made) each.disabled = Boolean(one);
  if (one?.reason) made.push(button("Do not send it", "quiet", () => stopPress(one)));
  shown.choices.replaceChildren(...made);
  if (one?.reason) showNote(shown, `“${one.label}” is not sent yet: ${one.reason}. The page sends it when it can.`);
}

function showNote(shown, said) {
  // An answered card itself shows that it was answered.
  shown.note.textContent = shown.data.text.endsWith(said) ? "" : said;
}

/* What the person does in a conversation */

function keep(name, value) {
  try {
    sessionStorage.setItem(name, JSON.stringify(value));
  } catch {
    note("The text that is not sent yet is too long to survive a reload of the page.");
  }
}

function write(conversation, said) {
  if (said) written.texts[conversation] = said;
  else delete written.texts[conversation];
  keep(WRITTEN, written);
}

function remember() {
  const named = (files) => files.map(({ id, name, size: bytes, type }) => ({ id, name, size: bytes, type }));
  const kept = ({ id, text: said, at, files, conversation, isRefused }) => ({ id, kind: "message", text: said, at, files: named(files), conversation, isRefused });
  keep(UNSENT, [...unsent.values()].map(kept));
}

function stand(data) {
  if (data.state === "kept") unsent.delete(data.id);
  else unsent.set(data.id, data);
  remember();
  if (data.conversation === current) {
    show(data);
    settle();
  }
}

/* Sends the unsent buttons and messages. The messages of one conversation are sent in order, each with its files. If a message
   cannot be sent yet, those after it wait. The page tries again after 1 to 30 seconds, and at once when the server becomes
   reachable. The server recognizes a repeated message by its id. */
function deliver() {
  clearTimeout(retry);
  for (const one of pressed.values()) sendPress(one);
  for (const conversation of new Set([...unsent.values()].map((one) => one.conversation))) deliverIn(conversation);
}

async function deliverIn(conversation) {
  if (delivering.has(conversation)) return;
  delivering.add(conversation);
  let isHeld = false;
  const due = () => [...unsent.values()].filter((one) => one.conversation === conversation && !one.isRefused);
  while (!isHeld && due().length) isHeld = !(await deliverOne(due()[0].id));
  delivering.delete(conversation);
  if (!isHeld) return;
  for (const one of due().slice(1)) stand({ ...one, state: "failed", reason: "not sent yet: an earlier message is not sent" });
  later();
}

function later() {
  clearTimeout(retry);
  retry = setTimeout(deliver, retryPause);
  retryPause = Math.min(retryPause * 2, MAX_PAUSE);
}

async function deliverOne(id) {
  const { files, text: said, conversation } = unsent.get(id);
  let [answer, what] = [{ ok: true }, ""];
  for (const one of files) if (answer.ok && !one.id) [answer, what] = [await upload(one), `${one.name}: `];
  if (answer.ok) [answer, what] = [await call("POST", "/messages", { id, text: said, files: files.map((one) => one.id), conversation }), ""];
  const known = unsent.get(id); // undefined if the server has meanwhile confirmed the message, or the person has withdrawn it
  if (!known) return true;
  if (answer.ok) stand({ ...known, state: "kept" });
  else {
    const isForgotten = answer.told.error?.code === "unknown_file"; // the server was restarted, so the files must be uploaded again
    if (isForgotten) for (const one of files) one.id = "";
    const isRefused = answer.isRefused && !(isForgotten && hasFilesOf(known));
    stand({ ...known, state: "failed", reason: `${isRefused ? "not sent" : "not sent yet"}: ${what}${answer.reason}`, isRefused });
  }
  return answer.ok || unsent.get(id).isRefused;
}

function reached() {
  retryPause = MIN_PAUSE;
  if (!events) listen();
  for (const one of [...uploads.values()].flat()) if (!one.id && !one.isRefused) upload(one);
  deliver();
}

function sendAgain(id) {
  stand({ ...unsent.get(id), state: "sending", reason: "", isRefused: false });
  deliver();
}

function say(said, files, conversation) {
  const id = newId();
  if (conversation === written.fresh) written.fresh = newId();
  stand({ id, kind: "message", text: said, files, at: Date.now(), order: Infinity, conversation, state: "sending", reason: "", isRefused: false });
  deliver();
}

function discard(id) {
  unsent.delete(id);
  remember();
  entries.get(id).element.remove();
  entries.delete(id);
  settle();
  text.focus();
  deliver();
}

function takeUp(id) {
  const { text: said, files, conversation } = unsent.get(id);
  discard(id);
  uploads.set(conversation, [...files.filter((one) => one.id || one.blob), ...(uploads.get(conversation) || [])]);
  write(conversation, [said, written.texts[conversation]].filter(Boolean).join("\n"));
  leaveEditing();
  showUploads();
}

function edit(id, said) {
  editing = id;
  text.value = said;
  part("editing").hidden = false;
  grow();
  text.focus();
}

function leaveEditing() {
  editing = null;
  text.value = written.texts[current] || "";
  part("editing").hidden = true;
  grow();
  text.focus();
}

async function change(id, said) {
  const { ok, reason } = await call("PUT", `/messages/${id}`, { text: said });
  const shown = entries.get(id);
  if (ok || !shown) return;
  shown.note.textContent = `not edited: ${reason}`;
  if (!editing) edit(id, said);
}

async function takeBack(id) {
  const { ok, reason } = await call("DELETE", `/messages/${id}`);
  const shown = entries.get(id);
  if (!ok && shown) shown.note.textContent = `not deleted: ${reason}`;
  text.focus();
}

function press(card, label, value) {
  pressed.set(card, { card, label, value, id: newId(), reason: "" });
  sendPress(pressed.get(card));
}

/* Sends a button that was pressed. If it cannot be sent yet, it is sent with the unsent messages. */
async function sendPress(one) {
  if (one.isSending) return;
  one.isSending = true;
  showPress(one);
  const { ok, isRefused, told, reason } = await call("POST", "/buttons", { message_id: one.card, value: one.value, press_id: one.id });
  one.isSending = false;
  one.reason = reason;
  if (pressed.get(one.card) !== one) return; // the button must no longer be sent
  if (ok || isRefused) pressed.delete(one.card);
  else later();
  showPress(one);
  if (ok || isRefused) showNoteOf(one.card, ok ? told.note : `not sent: ${reason}`);
}

function stopPress(one) {
  pressed.delete(one.card);
  showPress(one);
  showNoteOf(one.card, "");
}

function showPress({ card }) {
  keep(PRESSED, [...pressed.values()].map((one) => ({ ...one, isSending: false })));
  if (entries.has(card)) showChoices(entries.get(card));
}

function showNoteOf(card, said) {
  if (entries.has(card)) showNote(entries.get(card), said);
}

async function stop() {
  if (isStopping || part("stop").hidden) return;
  isStopping = true;
  showBusy();
  const { ok, told, reason } = await call("POST", `/conversations/${current}/stop`, {});
  isStopping = false;
  writing.delete(current);
  note(ok ? told.note : `Not stopped: ${reason}`);
  setTimeout(note, 4000, "");
  showBusy();
}

const isAsking = () => [...entries.values()].some(({ data }) => data.kind === "card" && data.asks && data.buttons.length > 0);
const isWriting = () => (writing.get(current) || 0) > Date.now() || [...entries.values()].some(({ data }) => data.draft);

function showBusy() {
  const until = writing.get(current) || 0;
  const grows = [...entries.values()].some(({ data }) => data.draft);
  const waits = until > Date.now();
  if (waits) setTimeout(showBusy, until - Date.now() + 50);
  const hidden = part("typing").hidden;
  part("typing").hidden = !waits || grows;
  part("stop").hidden = !waits && !grows && !isAsking(); // a run that waits for an answer can be stopped, too
  part("stop").disabled = isStopping;
  if (hidden && !part("typing").hidden && isAtEnd(120)) toEnd();
  for (const one of part("conversations").children) one.classList.toggle("writing", (writing.get(one.dataset.id) || 0) > Date.now());
}

/* Files to send */

function showUploads() {
  const id = current;
  const made = (uploads.get(id) || []).map((one) => {
    const [item, words] = [element("li", one.isRefused ? "failed" : ""), element("span", "words")];
    words.append(element("span", "file-name", one.name), element("span", "file-size", size(one.size)));
    if (one.reason) words.append(element("span", "reason", one.reason));
    else if (!one.id) {
      one.bar = element("progress");
      one.bar.max = one.size || 1;
      one.bar.value = one.sent;
      one.bar.setAttribute("aria-label", `Uploading ${one.name}`);
      words.append(one.bar);
    }
    item.append(words, iconButton("close", `Remove ${one.name}`, () => {
      uploads.set(id, uploads.get(id).filter((other) => other !== one));
      one.isRefused = true; // not uploaded again
      if (one.request) one.request.abort();
      showUploads();
      text.focus();
    }));
    return item;
  });
  part("chosen").replaceChildren(...made);
  part("chosen").hidden = !made.length;
}

/* Uploads a file and returns the answer, like `call`. A file that is being uploaded is not uploaded twice. */
function upload(one) {
  one.uploading ||= new Promise((ends) => {
    const request = (one.request = new XMLHttpRequest()); // fetch does not tell how much was sent
    request.open("POST", `${base}/files?name=${encodeURIComponent(one.name)}`);
    request.setRequestHeader("X-Postroom", "1");
    request.responseType = "json";
    request.upload.addEventListener("progress", (event) => {
      one.sent = event.loaded;
      if (one.bar) one.bar.value = event.loaded;
    });
    request.addEventListener("loadend", () => ends(answered(request.status, request.response)));
    request.send(one.blob);
  }).then((answer) => {
    one.uploading = one.request = null;
    if (answer.ok) Object.assign(one, { id: answer.told.id, name: answer.told.name, type: answer.told.type });
    one.isRefused ||= answer.isRefused;
    one.reason = answer.ok ? "" : `not uploaded${answer.isRefused ? "" : " yet"}: ${answer.reason}`;
    showUploads();
    if (answer.ok) reached();
    return answer;
  });
  return one.uploading;
}

function attach(files) {
  note("");
  const chosen = [...(uploads.get(current) || [])];
  uploads.set(current, chosen);
  for (const file of files) {
    if (chosen.length >= MAX_FILES) {
      note(`A message has at most ${MAX_FILES} files.`);
      break;
    }
    const one = { blob: file, name: file.name, size: file.size, type: "", id: "", sent: 0, reason: "", isRefused: file.size > LARGEST_FILE };
    if (one.isRefused) one.reason = `not uploaded: a file has at most ${size(LARGEST_FILE)}`;
    else upload(one);
    chosen.push(one);
  }
  showUploads();
  text.focus();
}

addEventListener("beforeunload", (event) => {
  if ([...unsent.values()].some((one) => one.files.some((file) => !file.id && file.blob))) event.preventDefault();
});
const hasFiles = (event) => [...event.dataTransfer.types].includes("Files");
let dragged = 0;
for (const [name, step] of [["dragenter", 1], ["dragleave", -1], ["drop", 0]])
  addEventListener(name, (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    dragged = step ? dragged + step : 0;
    part("drop").hidden = dragged <= 0;
    if (!step) attach([...event.dataTransfer.files]);
  });
addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
part("attach").addEventListener("click", () => part("file").click());
part("file").addEventListener("change", () => {
  attach([...part("file").files]);
  part("file").value = "";
});
text.addEventListener("paste", (event) => {
  if (event.clipboardData.files.length) {
    event.preventDefault();
    attach([...event.clipboardData.files]);
  }
});

/* Writing */

function grow() {
  text.style.height = "auto";
  text.style.height = `${text.scrollHeight + 2}px`;
}

part("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const [id, said, files] = [editing, text.value.trim(), uploads.get(current) || []];
  if (!said && (id || !files.length)) return;
  if (id) {
    leaveEditing();
    return change(id, said);
  }
  if (files.some((one) => one.isRefused)) return note("Remove the files that cannot be sent first.");
  note("");
  uploads.delete(current);
  write(current, "");
  leaveEditing();
  showUploads();
  say(said, files, current);
});
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    part("composer").requestSubmit();
  }
});
addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.defaultPrevented || part("ask").open) return;
  if (document.body.classList.contains("listed")) showSide(false);
  else if (editing) leaveEditing();
  else if (isWriting() && !isAsking()) stop(); // a run that waits for an answer is stopped only by the button
});
text.addEventListener("input", () => {
  grow();
  if (!editing && current) write(current, text.value);
});
part("cancel").addEventListener("click", leaveEditing);
part("stop").addEventListener("click", () => {
  stop();
  text.focus();
});
part("ideas").addEventListener("click", ({ target }) => {
  const said = target.dataset.text;
  if (!said) return;
  leaveEditing();
  text.value = said;
  write(current, said);
  if (!said.endsWith(" ")) part("composer").requestSubmit();
});
part("newest").addEventListener("click", () => {
  toEnd();
  text.focus();
});
part("older").addEventListener("click", readOlder);
scroll.addEventListener("scroll", () => {
  if (isAtEnd(80) || scroll.scrollTop < lastTop) keepsEnd = isAtEnd(80);
  lastTop = scroll.scrollTop;
  showNewest();
  if (scroll.scrollTop < 200) readOlder();
});

/* Conversations */

function showSide(on) {
  document.body.classList.toggle("listed", on);
  part("shade").hidden = !on;
  part("open-side").setAttribute("aria-expanded", on ? "true" : "false");
  (on ? part("new") : text).focus();
}

matchMedia("(max-width: 50rem)").addEventListener("change", (narrow) => {
  if (!narrow.matches && document.body.classList.contains("listed")) showSide(false); // the window is now wide enough to show the list beside the chat
});

function dayOf(at) {
  const days = Math.round((new Date().setHours(0, 0, 0, 0) - new Date(at).setHours(0, 0, 0, 0)) / 86400000);
  return days < 1 ? "Today" : days < 2 ? "Yesterday" : days < 7 ? "Last 7 days" : days < 30 ? "Last 30 days" : "Older";
}

function conversationItem(one, place, listed) {
  const item = element("li");
  const day = dayOf(one.at);
  if (!place || dayOf(listed[place - 1].at) !== day) item.dataset.day = day;
  item.dataset.id = one.id;
  const open = button(one.title, "title", () => {
    go(one.id);
    showSide(false);
  });
  open.title = one.title;
  if (one.id === current) open.setAttribute("aria-current", "page");
  if (unread.has(one.id)) item.classList.add("unread");
  if (unread.has(one.id)) open.append(element("span", "unseen", " (new answer)"));
  item.append(open, iconButton("rename", `Rename ${one.title}`, () => rename(one, item)), iconButton("delete", `Delete ${one.title}`, () => remove(one)));
  return item;
}

function showConversations() {
  if (part("conversations").querySelector("input")) return; // a title is being changed
  const listed = conversations.filter((one) => one.title.toLocaleLowerCase().includes(sought()));
  part("conversations").replaceChildren(...listed.map(conversationItem));
  part("none").hidden = !sought() || listed.length > 0 || hasMoreConversations;
  part("more-conversations").hidden = !hasMoreConversations || Boolean(sought());
  const shown = conversations.find((one) => one.id === current);
  part("title").textContent = shown ? shown.title : "New chat";
  document.title = shown ? `${shown.title} - ${document.body.dataset.title}` : document.body.dataset.title;
  showBusy();
}

async function readConversations(before) {
  const number = (listsRead += 1);
  const { ok, told } = await call("GET", `/conversations${before ? `?before=${before}` : ""}`);
  if (!ok || number !== listsRead) return; // a newer request for the list was made
  const wasListed = conversations.some((one) => one.id === current);
  conversations = before ? [...conversations, ...told.conversations] : told.conversations;
  hasMoreConversations = told.more;
  if (wasListed && !hasMoreConversations && !conversations.some((one) => one.id === current)) begin(); // deleted
  showConversations();
  seek();
}

/* Shows the conversations with these words in their titles; those that are not read yet are read page by page. */
const sought = () => part("seek").value.trim().toLocaleLowerCase();
function seek() {
  if (sought() && hasMoreConversations) readConversations(conversations.at(-1).at);
}

part("seek").addEventListener("input", () => {
  showConversations();
  seek();
});

function rename(one, item) {
  const input = element("input");
  input.value = one.title;
  input.maxLength = 60;
  input.setAttribute("aria-label", `New title of ${one.title}`);
  let isOver = false;
  const ends = async (keeps) => {
    if (isOver) return;
    isOver = true;
    const title = input.value.trim();
    input.remove();
    if (keeps && title && title !== one.title) {
      const { ok, reason } = await call("PUT", `/conversations/${one.id}`, { title });
      if (!ok) note(`Not renamed: ${reason}`);
      await readConversations();
    } else showConversations();
  };
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== "Escape") return;
    event.preventDefault();
    ends(event.key === "Enter");
    text.focus();
  });
  input.addEventListener("blur", () => ends(true));
  item.replaceChildren(input);
  input.select();
}

async function remove(one) {
  part("ask-text").textContent = `“${one.title}” and its messages are deleted permanently. An answer that is being written is stopped.`;
  part("ask").showModal();
  // The "close" event fires one task after the dialog has closed, when the next dialog may be open. The form's event fires at once.
  const answer = await new Promise((answered) => (part("ask").firstElementChild.onsubmit = ({ submitter }) => answered(submitter.value)));
  if (answer !== "yes") return;
  const { ok, reason } = await call("DELETE", `/conversations/${one.id}`);
  if (!ok) return note(`Not deleted: ${reason}`);
  write(one.id, "");
  if (one.id === current) begin();
  await readConversations();
}

function begin() {
  go(written.fresh); // with the text that was begun in the conversation
  showSide(false);
}

function go(id) {
  if (location.hash === `#${id}`) open(id);
  else location.hash = id;
}

async function open(id) {
  if (id !== current) {
    if (current === null && text.value) write(id, [written.texts[id], text.value].filter(Boolean).join("\n")); // typed while the page loaded
    current = id;
    written.shown = id;
    keep(WRITTEN, written);
    leaveEditing();
    showUploads();
  }
  arriving = [];
  hasOlder = false;
  unread.delete(id);
  entries.clear();
  log.replaceChildren();
  note("");
  part("newest").hidden = true;
  showConversations();
  const { ok, told, reason } = await call("GET", `/conversations/${id}`);
  if (current !== id) return;
  const came = arriving;
  arriving = null;
  if (!ok) note(`The conversation cannot be read: ${reason}`);
  else {
    hasOlder = told.more;
    for (const one of told.entries) show(one);
    if (!lastId) lastId = told.event;
  }
  for (const one of unsent.values()) if (one.conversation === id) show(one);
  for (const one of came) show(one);
  settle();
  toEnd();
}

async function readOlder() {
  if (!hasOlder || isReadingOlder || arriving) return;
  isReadingOlder = true;
  const id = current;
  const before = Math.min(...[...entries.values()].map(({ data }) => data.order));
  const { ok, told } = await call("GET", `/conversations/${id}?before=${before}`);
  isReadingOlder = false;
  if (!ok || current !== id) return;
  hasOlder = told.more;
  const [height, top] = [scroll.scrollHeight, scroll.scrollTop];
  for (const one of told.entries) if (!entries.has(one.id)) show(one);
  settle();
  scroll.scrollTop = top + scroll.scrollHeight - height;
}

part("new").addEventListener("click", begin);
part("more-conversations").addEventListener("click", () => readConversations(conversations.at(-1).at));
part("open-side").addEventListener("click", () => showSide(true));
for (const name of ["close-side", "shade"]) part(name).addEventListener("click", () => showSide(false));
const named = () => (/^#[A-Za-z0-9_-]{4,64}$/.test(location.hash) ? location.hash.slice(1) : "");
addEventListener("hashchange", () => open(named() || "main"));

/* What the server says */

function online(up) {
  part("link").textContent = up ? "Connected" : "Connecting again…";
  part("link").classList.toggle("up", up);
}

function takeEntry(data) {
  if (data.kind === "message") {
    if (unsent.delete(data.id)) {
      remember();
      deliver();
    }
  } else if (!data.draft) writing.delete(data.conversation);
  const listed = conversations.find((one) => one.id === data.conversation);
  if (listed && !data.draft && data.order > listed.at) {
    listed.at = data.order;
    conversations.sort((one, other) => other.at - one.at);
    showConversations();
  }
  if (data.conversation !== current) {
    if (data.kind !== "message" && !data.draft && !data.gone) unread.add(data.conversation);
    showConversations();
  } else if (arriving) arriving.push(data);
  else if (hasOlder && !entries.has(data.id) && data.order < Math.min(...[...entries.values()].map((one) => one.data.order))) return;
  else {
    show(data);
    settle();
  }
}

function listen() {
  clearTimeout(relisten);
  const source = (events = new EventSource(`${base}/events${lastId ? `?after=${encodeURIComponent(lastId)}` : ""}`));
  let silence = 0;
  const ends = () => {
    source.close();
    clearTimeout(silence);
    events = null;
    online(false);
    relisten = setTimeout(listen, listenPause);
    listenPause = Math.min(listenPause * 2, MAX_PAUSE);
    readConversations(); // the response shows whether the sign-in has ended
  };
  const on = (name, act) =>
    source.addEventListener(name, (event) => {
      clearTimeout(silence);
      silence = setTimeout(ends, SILENCE);
      lastId = event.lastEventId || lastId;
      act(event.data && JSON.parse(event.data));
    });
  on("open", () => {
    online(true);
    listenPause = MIN_PAUSE;
    readConversations();
    reached();
  });
  on("alive", () => {});
  on("entry", takeEntry);
  on("conversations", () => readConversations());
  on("typing", ({ conversation }) => {
    writing.set(conversation, Date.now() + TYPING);
    showBusy();
  });
  on("reset", () => open(current)); // this page may show outdated entries
  source.addEventListener("error", ends);
  silence = setTimeout(ends, SILENCE);
}

addEventListener("online", reached);

async function start() {
  grow();
  written.fresh = written.fresh || newId();
  await readConversations();
  const first = named() || written.shown || (conversations.length ? conversations[0].id : "main");
  history.replaceState(null, "", `#${first}`);
  await open(first);
  text.focus();
  if (!events) listen();
}

start();
