// The picture moves at once, and is fetched anew. Links do the same.
const one = (selector, within = document) => within.querySelector(selector);
const all = (selector) => [...document.querySelectorAll(selector)];
const page = one(".tl-page");
const told = (...names) => names.map((name) => +one(".tl-picture").dataset[name]);
const bounds = () => told("begin", "end");
let view = bounds(), timer = 0, fetched = Date.now(), held, dragged;

function renew() {
  fetched = Date.now();
  document.dispatchEvent(new CustomEvent("postroom:renew", { detail: ["tools", "picture", "panel", "listing"] }));
}
const chooses = (query) => /[?&]sel=/.test(query);
function load(address) {
  const isNew = chooses(address) && !chooses(location.search);
  history[isNew ? "pushState" : "replaceState"](isNew || history.state, "", address);
  renew();
}
addEventListener("popstate", renew);
// The present goes on.
setInterval(() => {
  const [from, to] = bounds();
  if (one("[data-follows]") && !held && Date.now() - fetched >= Math.max((to - from) / 400, 2000)) renew();
}, 1000);

function settle() {
  if (!timer) view = bounds();
  draw();
  page.classList.toggle("chosen", !one(".tl-panel").hidden);
  const marks = all(".tl-drawing a"), at = marks.find((mark) => mark.ariaCurrent) ?? marks.at(-1);
  for (const mark of marks) mark.tabIndex = mark === at ? 0 : -1;
}

// As a style it would cost a frame four times as much.
const still = one(".tl-moved").animate({}, { duration: 1, fill: "both" });
still.pause();
function draw() {
  const [from, to] = bounds(), length = view[1] - view[0];
  const place = timer ? `translateX(${((from - view[0]) / length) * 100}%) scaleX(${(to - from) / length})` : "none";
  still.effect.setKeyframes({ transform: [place, place] });
}

function show(begin, end) {
  const [now] = told("now"), over = Math.max(end - now - (end - begin) / 20, 0);
  view = [begin - over, end - over];
  clearTimeout(timer);
  timer = setTimeout(() => {
    const query = new URLSearchParams(location.search), [from, to] = view.map(Math.round);
    query.delete("span");
    query.set("from", from);
    query.set("to", to);
    load(`?${query}`);
    timer = setTimeout(() => (timer = 0), 1000);
  }, 120);
  requestAnimationFrame(draw);
}

const move = (by) => show(...view.map((edge) => edge + (view[1] - view[0]) * by));
page.addEventListener("wheel", (event) => {
  const plot = event.target.closest(".tl-plot"), box = plot?.getBoundingClientRect();
  if (!plot || !event.ctrlKey) return;
  event.preventDefault();
  const length = view[1] - view[0], middle = view[0] + ((event.clientX - box.left) / box.width) * length;
  const [least, most] = told("shortest", "longest");
  const by = Math.min(Math.max(length * Math.exp(event.deltaY / 300), least), most) / length;
  show(...view.map((edge) => middle + (edge - middle) * by));
}, { passive: false });
page.addEventListener("pointerdown", (event) => {
  const plot = event.target.closest(".tl-plot, .tl-day"), day = one(".tl-view").dataset;
  if (!plot || event.button || event.pointerType === "touch") return;
  const length = plot.matches(".tl-day") ? day.dayEnd - day.dayBegin : view[0] - view[1];
  held = { x: event.clientX, view, per: length / plot.clientWidth };
});
addEventListener("pointermove", (event) => {
  const far = held && event.clientX - held.x;
  dragged ||= Math.abs(far) > 4;
  if (held && dragged) show(...held.view.map((edge) => edge + far * held.per));
});
addEventListener("pointerup", () => (held = null, setTimeout(() => (dragged = false))));
page.ondragstart = () => false;
page.addEventListener("click", (event) => {
  const href = event.target.closest("a")?.getAttribute("href");
  if (!href || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const isHere = href.startsWith(location.pathname + "?");
  if (dragged || isHere) event.preventDefault();
  if (dragged || !isHere) return;
  if (history.state && event.target.closest("[data-close]")) history.back();
  else load(href);
});

function along(by) {
  const marks = all(".tl-drawing a");
  (marks[marks.indexOf(document.activeElement) + by] ?? marks.at(-1))?.focus({ preventScroll: true });
}
const KEYS = {
  ArrowLeft: () => move(-0.25), ArrowRight: () => move(0.25), "[": () => along(-1), "]": () => along(1),
  Escape: () => one("[data-close]")?.click(),
};
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || one("#help").open) return;
  if (event.target.matches("input, textarea, select, pre") || !(one("#keys-on").checked || event.key[1])) return;
  KEYS[event.key]?.();
});
document.addEventListener("postroom:changed", settle);
settle();
