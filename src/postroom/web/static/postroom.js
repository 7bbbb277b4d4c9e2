const PATIENCE = 250;
const RETRY = 2_000;

const body = document.body;
const one = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const kept = (name, value) => {
  try {
    return value === undefined ? localStorage[name] : (localStorage[name] = value);
  } catch {} // storage is off
};

const keyOf = (node) => node.id || node.dataset?.key || "";
const fits = (old, fresh) => old.nodeName === fresh.nodeName && keyOf(old) === keyOf(fresh);

function change(old, fresh, rows) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeType !== 1) return (old.data = fresh.data);
  for (const { name } of [...old.attributes])
    if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes)
    if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  changeChildren(old, fresh, rows);
}

function changeChildren(old, fresh, rows) {
  const drop = (node) => rows.some((row) => node.contains(row)) || node.remove();
  const keyed = new Map([...old.children].filter(keyOf).map((node) => [keyOf(node), node]));
  const stay = new Set([...fresh.children].map(keyOf));
  let place = old.firstChild;
  const next = () => {
    const node = place;
    place = place.nextSibling;
    return node;
  };
  for (const node of [...fresh.childNodes]) {
    while (place && keyOf(place) && !stay.has(keyOf(place))) drop(next());
    const known = keyed.get(keyOf(node));
    if (known?.nodeName === node.nodeName) {
      if (known === place) next();
      else old.insertBefore(known, place);
      change(known, node, rows);
    } else if (place && fits(place, node)) change(next(), node, rows);
    else old.insertBefore(node, place);
  }
  while (place) drop(next());
}

// A row with a field in use or typed text stays. A part stays whole that has a selection, or a button to which the pointer has
// just moved: no other button comes under the pointer. A button says "1 new".

const differs = (field) =>
  field.options ? [...field.options].some((choice) => choice.selected !== choice.defaultSelected)
    : /box|radio/.test(field.type) ? field.checked !== field.defaultChecked
      : field.type !== "hidden" && field.value !== field.defaultValue;

const FIELDS = "input, textarea, select";
let aimedAt = 0;
onpointermove = onpointerdown = () => (aimedAt = Date.now());

function used(part) {
  const isAimed = Date.now() - aimedAt < RETRY && one(":is(button, summary, a):hover", part);
  if (isAimed) setTimeout(letGo, RETRY);
  const chosen = getSelection(), fields = all(FIELDS, part).filter((field) => field === document.activeElement || differs(field));
  return isAimed || (!chosen.isCollapsed && part.contains(chosen.anchorNode)) ? [part, ...fields] : fields;
}

function plain(part) {
  const copy = part.cloneNode(true);
  for (const time of all("time", copy)) time.textContent = "";
  return copy.innerHTML.replace(/\s+/g, " ");
}

const held = new Map();
const news = document.createElement("button");
news.className = "news";
news.onclick = () => letGo(true);

function put(part, fresh, isAsked) {
  held.delete(part);
  const rows = isAsked ? [] : used(part).map(cardOf);
  if (rows.every((row) => row !== part && part.contains(row))) {
    const copy = fresh.cloneNode(true);
    for (const row of rows) all("[data-item]", copy).find((twin) => keyOf(twin) === keyOf(row))?.replaceWith(row.cloneNode(true));
    changeChildren(part, copy, rows);
  }
  if (rows.length && plain(part) !== plain(fresh)) held.set(part, fresh);
}

function tellHeld() {
  if (!held.size) return news.remove();
  let count = 0;
  for (const [part, fresh] of held) {
    const here = new Set(all("[data-key], [id]", part).map(keyOf));
    count += all("[data-key]", fresh).filter((node) => !here.has(keyOf(node))).length;
  }
  news.textContent = `${Math.max(count, 1)} new`;
  if (!news.isConnected) body.append(news);
}

function letGo(isAsked) {
  for (const [part, fresh] of [...held]) put(part, fresh, isAsked);
  tellHeld();
  settled();
}
addEventListener("focusout", () => setTimeout(letGo));
document.addEventListener("selectionchange", () => held.size && letGo());

const stale = new Set();
let fetching, timer, pause = PATIENCE, after = +body.dataset.after, needed, toldAt = 0;
let shownAt = Date.now(), trouble = "";

function settled() {
  tick();
  document.dispatchEvent(new Event("postroom:changed"));
}

function ask(names) {
  for (const name of names) stale.add(name);
  plan();
}
document.addEventListener("postroom:renew", ({ detail }) => ask(detail));

const soil = (group) => ask(all("[data-part]").map((part) => part.dataset)
  .filter(({ on }) => !group || on.split(" ").includes(group)).map(({ part }) => part));

function plan() {
  if (stale.size && !fetching && !timer && !document.hidden) timer = setTimeout(renew, pause);
}

async function renew() {
  const names = [...stale], address = new URL(location.href), began = performance.now();
  timer = clearTimeout(timer);
  fetching = true;
  stale.clear();
  if (one("#out").hidden) address.searchParams.set("part", names); // else the forms', too
  let cursor = null;
  try {
    const answer = await fetch(address, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(20_000) });
    one("#out").hidden = !answer.redirected;
    if (answer.redirected) return;
    if (answer.status >= 500) throw new Error(answer.status);
    if (answer.ok) {
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      cursor = +answer.headers.get("Postroom-After");
      for (const name of names) {
        const [part, change] = [document, fresh].map((where) => one(`[data-part="${name}"]`, where));
        if (part && change) put(part, change);
      }
      const token = one("[name=form_token]", fresh)?.value;
      if (token) for (const field of all("[name=form_token]")) field.value = token;
      tellHeld();
      settled();
      tellNeeds();
    }
    trouble = answer.ok ? "" : `load the page again (${answer.status})`;
    shownAt = Date.now();
    // A slow server is asked less often.
    pause = Math.min(Math.max(PATIENCE, 2 * (performance.now() - began)), 5_000);
  } catch {
    ask(names);
    pause = RETRY;
  } finally {
    fetching = false;
    plan();
  }
  return cursor;
}

function tellNeeds() {
  const many = +(one("[data-needs]")?.dataset.needs ?? 0), now = many ? `${many} need you` : "nothing needs you";
  document.title = (many ? `(${many}) ` : "") + document.title.replace(/^\(\d+\) /, "");
  if (needed && now !== needed && Date.now() - toldAt > 10_000) {
    one("#told").textContent = now;
    toldAt = Date.now();
  }
  needed = now;
}

for (const { dataset } of all("[data-every]")) setInterval(() => ask([dataset.part]), dataset.every);
// The title of the first page is current in a hidden tab, too.
if (one("h1[data-needs]")) setInterval(() => document.hidden && !fetching && renew(), 15_000);

// One stream for all tabs: the tab that holds the lock tells the others.

const project = body.dataset.project;
const name = `postroom/${project}`;
const channel = project === undefined ? null : new BroadcastChannel(name);
let source, wanted, release, isLost, heardAt = Date.now(), begunAt, backoff = RETRY, sleepy;

// A page is live while its stream is heard and no change waits long.
function follow() {
  const now = Date.now(), place = one("#following");
  if (document.hidden || !(fetching || stale.size)) shownAt = now;
  const isBad = channel && (isLost || now - heardAt > 20_000 || now - shownAt > 10_000);
  const since = new Date(Math.min(heardAt, shownAt)).toLocaleTimeString();
  const words = trouble || (isBad ? `not live since ${since}` : isLost === false ? "live" : "");
  place.hidden = !words;
  place.classList.toggle("bad", words !== "live");
  if (place.textContent !== words) place.textContent = words;
}

function heard(told) {
  isLost = !!told.lost;
  if (!isLost) {
    heardAt = Date.now();
    if (told.at > after) soil();
    else if (told.seq > after && told.kind) soil(told.kind.split(".")[0]);
    after = Math.max(after, told.at ?? 0, told.seq ?? 0);
  }
  follow();
}

const tell = (told) => (channel.postMessage(told), heard(told));

function listen() {
  begunAt = Date.now();
  source = new EventSource(`/v1/events?${new URLSearchParams({ project_key: project, after })}`);
  const take = (event) => {
    backoff = RETRY;
    tell({ kind: event.type === "beat" ? "" : event.type, seq: +event.lastEventId });
  };
  for (const kind of [...body.dataset.kinds.split(" "), "beat"]) source.addEventListener(kind, take);
  source.addEventListener("refused", again);
  source.onopen = () => tell({});
  source.onerror = () => {
    tell({ lost: true });
    if (source.readyState === EventSource.CLOSED) again();
  };
}

function again() {
  stop();
  setTimeout(async () => {
    if (source || !wanted) return;
    soil();
    after = (await renew()) ?? after;
    listen();
  }, backoff);
  backoff = Math.min(2 * backoff, 30_000);
}

function stop() {
  source?.close();
  source = null;
}

function come() {
  clearTimeout(sleepy);
  shownAt = Date.now();
  channel.postMessage({ hello: after });
  plan();
  if (wanted) return;
  wanted = new AbortController();
  if (!navigator.locks) return listen(); // not a secure context
  navigator.locks.request(name, { signal: wanted.signal }, () => {
    listen();
    return new Promise((done) => (release = done));
  }).catch(() => {});
}

function leave() {
  wanted?.abort();
  stop();
  release?.();
  wanted = release = null;
}

if (channel) {
  channel.onmessage = ({ data }) => {
    if (data.hello === undefined) heard(data);
    else if (source && after >= data.hello) channel.postMessage({ at: after });
  };
  addEventListener("visibilitychange", () => {
    if (!document.hidden) return come();
    sleepy = setTimeout(leave, 60_000);
  });
  addEventListener("pagehide", leave);
  addEventListener("pageshow", (event) => event.persisted && come());
  if (!document.hidden) come();
}

document.cookie = `postroom_zone=${Intl.DateTimeFormat().resolvedOptions().timeZone};path=/;max-age=9999999;samesite=lax`;
const skew = body.dataset.now - Date.now();
const UNITS = [[864e5, "day"], [36e5, "hour"], [6e4, "minute"], [1000, "second"]];
const relative = new Intl.RelativeTimeFormat("en");

function ago(instant) {
  const passed = Date.now() + skew - instant, distance = Math.abs(passed);
  if (distance < 45_000) return passed >= 0 ? "just now" : "in a moment";
  if (distance >= 30 * 864e5) return null;
  const [size, unit] = UNITS.find(([size]) => distance >= size);
  return relative.format(-Math.trunc(passed / size), unit);
}

function tick() {
  for (const time of all("time[title]")) {
    const words = ago(Date.parse(time.dateTime));
    if (words && time.firstChild.data !== words) time.firstChild.data = words;
  }
  follow();
  if (source && Date.now() - Math.max(heardAt, begunAt) > 40_000) again(); // after sleep it is deaf
}
setInterval(tick, 1000);

if (one("form[data-remember]")) kept("postroom/filter" + location.pathname, location.search);
for (const link of all(".tabs a")) {
  const chosen = kept("postroom/filter" + link.pathname);
  if (chosen && link.pathname !== location.pathname) link.search = chosen;
}

// A thread opens at the first message that its reader has not read.
if (!location.hash) one("[data-first]")?.scrollIntoView();

const help = one("#help"), switched = one("#keys-on");
const KEYS = "postroom/keys";
let going = 0;
switched.checked = kept(KEYS) !== "off";
switched.onchange = () => kept(KEYS, switched.checked ? "on" : "off");
one("#keys").hidden = false;
one("#keys").onclick = () => help.showModal();

const isShown = (node) => node.checkVisibility();
const cardOf = (node) => node.closest("[data-item]");
const handle = (row) => row.matches("[tabindex]") ? row : one(".opens", row) ?? one("a", row) ?? row;

function step(by) {
  const items = all("main [data-item]").filter(isShown).map(handle);
  const here = cardOf(document.activeElement);
  const at = here ? items.indexOf(handle(here)) : by > 0 ? -1 : items.length;
  items[at + by]?.focus();
}

function hotkey(key) {
  const card = cardOf(document.activeElement), found = all(`[data-hotkey="${CSS.escape(key)}"]`).filter(isShown);
  const node = found.find((its) => cardOf(its) === card) ?? found.find((its) => !card || !cardOf(its));
  // What sends is only found: Enter sends it.
  if (node?.matches("summary")) {
    node.click();
    (node.parentNode.open ? one("button", node.parentNode) : node).focus();
  } else if (node?.matches("a, [type=button]")) node.click();
  else node?.focus();
  return !!node;
}

function press(key) {
  const folds = all("main details"), isFolded = folds.some((fold) => !fold.open);
  if (Date.now() - going < 1500) {
    going = 0;
    one(`[data-go="${CSS.escape(key)}"]`)?.click();
  } else if (key === "g") going = Date.now();
  else if (key === "/") one(".find input")?.select();
  else if (key === "?") help.showModal();
  else if (key === "j" || key === "k") step(key === "j" ? 1 : -1);
  else if (/^[1-9]$/.test(key)) all("[data-need]")[key - 1]?.focus();
  else if (key === "e" && folds[0]) for (const fold of folds) fold.open = isFolded;
  else return hotkey(key);
  return true;
}

let go;
async function goTo() {
  go ??= (document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href: body.dataset.goStyle })),
    import(body.dataset.goScript));
  (await go).open();
}

addEventListener("click", (event) => {
  if (!event.target.closest?.("[data-go-to]") || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  goTo();
});

addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key === "k") return event.preventDefault(), goTo();
  if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing || help.open) return;
  const at = document.activeElement, isTyping = at.matches("input:not([type=checkbox]), textarea, select");
  if (event.key === "Escape") {
    for (const menu of all(".menu[open]")) {
      menu.open = false;
      if (menu.contains(at)) one("summary", menu).focus();
    }
    return isTyping && at.blur();
  }
  if (isTyping || !switched.checked || event.key.length > 1) return;
  if (press(event.key)) event.preventDefault();
});

settled();
tellNeeds();
