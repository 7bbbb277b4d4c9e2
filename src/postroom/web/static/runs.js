// Saved views: filters of this page under a name, in this browser.
const nav = document.getElementById("views"), name = `postroom/views${location.pathname}`;
const make = (tag, given, ...within) => {
  const node = Object.assign(document.createElement(tag), given);
  node.append(...within);
  return node;
};
const read = () => {
  try {
    return Object.entries(JSON.parse(localStorage[name] ?? "{}"));
  } catch {
    return []; // storage is off
  }
};

function write(views) {
  try {
    localStorage[name] = JSON.stringify(Object.fromEntries(views));
  } catch {}
  show();
}

function show() {
  const given = new URLSearchParams(location.search);
  for (const one of ["done", "many", "skipped", "seal", "before", "live"]) given.delete(one);
  for (const [key, value] of [...given]) if (!value) given.delete(key);
  const now = `${given}`, views = read();
  nav.replaceChildren(make("span", { className: "soft" }, "Saved views"), ...views.map(([title, query]) => make("span", {},
    make("a", { href: `?${query}`, className: "button small quiet", ariaCurrent: query === now ? "true" : null }, title), " ",
    make("button", { type: "button", className: "button small quiet", ariaLabel: `Delete the view ${title}`, onclick: () => write(views.filter(([one]) => one !== title)) }, "×"))));
  if (now && !views.some(([, query]) => query === now)) {
    const field = make("input", { maxLength: 40, placeholder: "Name", ariaLabel: "Name of the view", required: true });
    const form = make("form", { className: "choices", onsubmit: (event) => (event.preventDefault(), write([...views.filter(([one]) => one !== field.value), [field.value, now]])) },
      field, make("button", { className: "button small quiet" }, "Save this view"));
    nav.append(form);
  }
  nav.hidden = nav.children.length < 2;
}

show();
document.addEventListener("postroom:changed", () => nav.children.length || show());
