// The picture under the hand: wheel with Ctrl, drag and keys move it at once, the server then draws it anew.
// Everything here works as links, too; places are told by the server as attributes.
const PAUSE = 140;
const SHORTEST = 200;
const one = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const page = one(".tl-page");
const picture = () => one(".tl-picture");
const LOCAL = { hour: "2-digit", minute: "2-digit" };

const bounds = () => [Number(picture().dataset.begin), Number(picture().dataset.end)];
let view = bounds(), asking = null, timer = 0, frame = 0;

// Fetches what is drawn at an address, and puts it in the place of what is there.
async function load(address, names = ["tools", "picture", "panel", "listing"]) {
  asking?.abort();
  asking = new AbortController();
  const url = new URL(address, location.href), part = new URL(url);
  part.searchParams.set("part", names);
  try {
    const answer = await fetch(part, { signal: asking.signal, headers: { Accept: "text/html" } });
    if (answer.redirected || !answer.ok) return location.assign(url);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const at = document.activeElement.closest?.("[data-mark], [data-pick]")?.dataset;
    for (const name of names) {
      const [old, next] = [document, fresh].map((where) => one(`[data-part="${name}"]`, where));
      const made = one(`[data-part="${name}"] [data-part="${name}"]`, fresh) ?? next;
      if (old && made) old.replaceWith(document.importNode(made, true));
    }
    history.replaceState(null, "", url);
    view = bounds();
    settle();
    const key = at && (at.mark ?? at.pick);
    if (key && names.includes("picture")) one(`[data-mark="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
  } catch (error) {
    if (error.name !== "AbortError") location.assign(url);
  }
}

function settle() {
  page.classList.toggle("chosen", !one(".tl-panel").hidden);
  const marks = all(".tl-drawing a");
  for (const mark of marks) mark.setAttribute("tabindex", -1);
  (marks.find((mark) => mark.hasAttribute("aria-current")) ?? marks.at(-1))?.setAttribute("tabindex", 0);
  locally();
}

// Times by the clock of the reader's place. The instants are the server's: a wrong clock moves nothing.
function locally() {
  if (new Intl.DateTimeFormat().resolvedOptions().timeZone === "UTC") return;
  const step = all(".tl-axis [data-at]").map((tick) => Number(tick.dataset.at));
  const is = (size) => step.length < 2 || step[1] - step[0] < size;
  for (const tick of all("[data-at]")) {
    const moment = new Date(Number(tick.dataset.at));
    if (tick.matches("time")) tick.textContent = moment.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
    else if (!tick.closest(".tl-axis")) tick.textContent = moment.toLocaleTimeString(undefined, LOCAL);
    else if (step.length > 1 && !is(86_400_000)) tick.textContent = moment.toLocaleDateString(undefined, { day: "numeric", month: "short" });
    else if (!is(60_000)) tick.textContent = moment.toLocaleTimeString(undefined, LOCAL);
    else if (!is(1000)) tick.textContent = moment.toLocaleTimeString();
  }
  const corner = one(".tl-corner");
  if (corner) corner.textContent = "local time";
}

// Shows another span at once by moving what is drawn, and asks for it when the hand rests.
function show(begin, end) {
  const least = Math.max(end - begin, SHORTEST);
  view = [Math.max(begin, 0), Math.max(begin, 0) + least];
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(() => {
    const [from, to] = bounds(), scale = (to - from) / (view[1] - view[0]);
    const shift = ((from - view[0]) / (view[1] - view[0])) * one(".tl-plot").clientWidth;
    for (const drawn of all(".tl-drawing, .tl-axis")) {
      drawn.classList.add("moving");
      drawn.style.transform = `translateX(${shift}px) scaleX(${scale})`;
    }
  });
  clearTimeout(timer);
  timer = setTimeout(() => load(addressOf(...view)), PAUSE);
}

function addressOf(begin, end) {
  const url = new URL(location.href);
  url.searchParams.delete("span");
  url.searchParams.set("from", Math.round(begin));
  url.searchParams.set("to", Math.round(end));
  return url;
}

const zoom = (by, at = 0.5) => {
  const [begin, end] = view, middle = begin + (end - begin) * at;
  show(middle - (middle - begin) * by, middle + (end - middle) * by);
};
const move = (by) => show(...view.map((edge) => edge + (view[1] - view[0]) * by));

page.addEventListener("wheel", (event) => {
  const plot = event.target.closest(".tl-plot");
  if (!plot || !(event.ctrlKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))) return;
  event.preventDefault();
  const box = plot.getBoundingClientRect();
  if (event.ctrlKey) zoom(Math.exp(event.deltaY / 300), (event.clientX - box.left) / box.width);
  else move(event.deltaX / box.width);
}, { passive: false });

let held = null, dragged = false;
page.addEventListener("pointerdown", (event) => {
  const plot = event.target.closest(".tl-plot, .tl-day");
  dragged = false;
  if (!plot || event.button || event.pointerType === "touch") return;
  const day = plot.matches(".tl-day") ? one(".tl-view").dataset : null;
  if (day) {
    const box = plot.getBoundingClientRect(), length = Number(day.dayEnd) - Number(day.dayBegin);
    const at = Number(day.dayBegin) + ((event.clientX - box.left) / box.width) * length;
    if (!event.target.closest(".tl-view")) show(at - (view[1] - view[0]) / 2, at + (view[1] - view[0]) / 2);
    held = { x: event.clientX, view, per: length / box.width };
  } else held = { x: event.clientX, view, per: -(view[1] - view[0]) / plot.clientWidth };
});
addEventListener("pointermove", (event) => {
  if (!held) return;
  const far = event.clientX - held.x;
  if (!dragged && Math.abs(far) < 4) return;
  dragged = true;
  one(".tl-plot").classList.add("drag");
  show(held.view[0] + far * held.per, held.view[1] + far * held.per);
});
addEventListener("pointerup", () => {
  held = null;
  one(".tl-plot").classList.remove("drag");
});
page.addEventListener("dragstart", (event) => event.target.closest(".tl-plot") && event.preventDefault());

page.addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  const isHere = new URL(link.href?.baseVal ?? link.href, location.href).pathname === location.pathname;
  if (dragged || isHere) event.preventDefault();
  if (!dragged && isHere) load(link.href?.baseVal ?? link.href);
  dragged = false;
});
page.addEventListener("dblclick", (event) => event.target.closest("[data-mark]") && one(".tl-panel [data-open]")?.click());

// Keys; those of all pages are the frame's.
function along(by) {
  const marks = all(".tl-drawing a").sort((a, b) => a.getBoundingClientRect().x - b.getBoundingClientRect().x);
  const at = marks.indexOf(document.activeElement), next = marks[at < 0 ? marks.length - 1 : at + by];
  next?.focus({ preventScroll: true });
}

const KEYS = {
  "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "−": () => zoom(2),
  ArrowLeft: () => move(-0.25), ArrowRight: () => move(0.25),
  ArrowUp: () => along(-1), ArrowDown: () => along(1), "[": () => along(-1), "]": () => along(1),
  f: () => one("[data-follow]")?.click(),
  Escape: () => one(".tl-panel [data-close]")?.click(),
};
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || one("#help")?.open) return;
  const at = document.activeElement, isPicture = at.closest(".tl-plot, .tl-panel") || at === document.body || at.id === "main";
  if (at.matches("input, textarea, select") || (event.key.startsWith("Arrow") && !isPicture)) return;
  if (one("#keys-on")?.checked === false && event.key.length === 1) return;
  if (!(event.key in KEYS)) return;
  if (event.key !== "Escape") event.preventDefault();
  KEYS[event.key]();
});

// A picture that follows the present is drawn anew as time goes by, unless somebody has it in hand.
function follow() {
  const [begin, end] = bounds();
  if ("follows" in picture().dataset && !held && !document.hidden && view[0] === begin)
    load(location.href, ["tools", "picture", "listing"]);
  setTimeout(follow, Math.min(Math.max((end - begin) / 400, 2000), 60_000));
}
setTimeout(follow, 5000);
document.addEventListener("postroom:changed", () => {
  view = bounds();
  settle();
});
settle();
