// A finished run that is opened has been looked at; its key is kept for a week, as `web/projects.py` reads it.
addEventListener("click", ({ target }) => {
  const row = target.closest('[data-key^="f-"]'), link = target.closest("a");
  if (!row || !link) return;
  const key = `f-${row.dataset.key.slice(-12)}`.replace(/[^A-Za-z0-9-]/g, "");
  const kept = /(?:^|; )postroom_later=([^;]*)/.exec(document.cookie)?.[1].replaceAll('"', "");
  const items = (kept ? kept.split("_") : []).filter((item) => item && !item.startsWith(`${key}.`)).slice(-59);
  items.push(`${key}.${Math.floor(Date.now() / 1000) + 604_800}`);
  document.cookie = `postroom_later=${items.join("_")};path=/;max-age=604800;samesite=strict`;
});

// The saved views of runs in all projects, which `runs.js` keeps in this browser under the path of their page.
const saved = document.getElementById("saved"), prefix = "postroom/views/p/";
const make = (tag, given, ...within) => {
  const node = Object.assign(document.createElement(tag), given);
  node.append(...within);
  return node;
};
try {
  for (const key of Object.keys(localStorage).filter((one) => one.startsWith(prefix)).sort()) {
    const path = key.slice(prefix.length - 3), slug = path.split("/")[2];
    for (const [title, query] of Object.entries(JSON.parse(localStorage[key])))
      saved.querySelector("ul").append(make("li", {}, make("a", { href: `${path}?${query}` }, title), make("span", { className: "soft" }, slug)));
  }
} catch {} // storage is off
saved.hidden = !saved.querySelector("li");
