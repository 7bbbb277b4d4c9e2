// Ctrl+K: the results of the page /find in a dialog. The focus stays in the field; arrows choose, Enter goes there.
const make = (name, given = {}, ...within) => {
  const node = Object.assign(document.createElement(name), given);
  node.append(...within);
  return node;
};

const field = make("input", { type: "search", maxLength: 200, autocomplete: "off", placeholder: "Search or go to…" });
const list = make("ul", { id: "go-list", role: "listbox", ariaLabel: "Results" });
const told = make("p", { className: "hidden", role: "status" });
const dialog = make("dialog", { id: "go", ariaLabel: "Search or go to" }, field, list, told);
for (const [name, value] of Object.entries({ role: "combobox", "aria-expanded": "true", "aria-controls": "go-list", "aria-autocomplete": "list", "aria-label": "Search or go to" }))
  field.setAttribute(name, value);
let asked = 0, chosen = 0, timer;

function choose(place) {
  const all = [...list.children];
  chosen = Math.max(0, Math.min(place, all.length - 1));
  all.forEach((node, at) => node.setAttribute("aria-selected", at === chosen));
  all[chosen]?.scrollIntoView({ block: "nearest" });
  if (all[chosen]) field.setAttribute("aria-activedescendant", all[chosen].id);
  else field.removeAttribute("aria-activedescendant");
}

async function ask() {
  const mine = ++asked;
  try {
    const answer = await fetch(`/find?${new URLSearchParams({ q: field.value, part: "results" })}`, { headers: { Accept: "text/html" } });
    if (answer.redirected) return location.reload();
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (mine !== asked) return;
    list.replaceChildren(...[...page.querySelectorAll("[data-find]")].map((link, at) => {
      const row = make("li", { id: `go-${at}`, role: "option" }, make("b", { textContent: link.textContent }), " ",
        make("span", { className: "soft", textContent: link.closest("li").querySelector(".gist").textContent }));
      row.onclick = () => (location.href = link.getAttribute("href"));
      return row;
    }));
    told.textContent = `${list.children.length} results`;
    choose(0);
  } catch {} // the server is away: the next key asks again
}

field.oninput = () => {
  clearTimeout(timer);
  timer = setTimeout(ask, 120);
};
dialog.onkeydown = (event) => {
  event.stopPropagation();
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (by) choose(chosen + by);
  else if (event.key === "Enter") list.children[chosen]?.click();
  else return;
  event.preventDefault();
};
dialog.onclick = ({ target }) => target === dialog && dialog.close();
document.body.append(dialog);

export function open() {
  if (dialog.open) return dialog.close();
  dialog.showModal();
  field.select();
  ask();
}
