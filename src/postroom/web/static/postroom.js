// Keeps a page live: fetches it again and changes what differs, in place. Without it the page loads itself anew.
// What a reader holds stays: the scroll, the selection, the focus and what was typed. Text is set as text only:
// nodes come from the server's own page, parsed without running anything.
"use strict";

const EVERY = 2000;
const OVERLAP = 1000;
const LONGEST = 1 << 20;

const keyOf = (node) => (node.nodeType === 1 ? node.id || node.dataset.key || "" : "");
const fits = (old, fresh) =>
  old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName && keyOf(old) === keyOf(fresh);

function isHeld(node) {
  const focused = document.activeElement;
  if (focused && node.contains(focused) && /^(INPUT|TEXTAREA|SELECT)$/.test(focused.nodeName)) return true;
  return [...node.elements].some((one) => one.type === "text" && one.value !== one.defaultValue)
    || [...node.querySelectorAll("textarea")].some((one) => one.value !== one.defaultValue);
}

function changeText(old, fresh) {
  if (old.data === fresh.data) return;
  if (fresh.data.startsWith(old.data)) old.appendData(fresh.data.slice(old.data.length));
  else old.data = fresh.data;
}

function changeOutput(old, fresh) {
  const atEnd = old.scrollTop + old.clientHeight >= old.scrollHeight - 4;
  const said = old.firstChild, text = fresh.textContent;
  if (!said) old.append(text);
  else if (text.startsWith(said.data)) said.appendData(text.slice(said.data.length));
  else {
    // Only the end of a long output is sent: go on where what stands here ends.
    const tail = said.data.slice(-OVERLAP), at = text.lastIndexOf(tail);
    if (at >= 0) said.appendData(text.slice(at + tail.length));
    else said.data = text;
    if (said.length > LONGEST) said.deleteData(0, said.length - LONGEST);
  }
  if (atEnd) old.scrollTop = old.scrollHeight;
}

function change(old, fresh) {
  if (old.nodeType === 3) return changeText(old, fresh);
  if (old.nodeType !== 1 || old.isEqualNode(fresh)) return;
  if (old.matches("pre.output")) return changeOutput(old, fresh);
  if (old.nodeName === "FORM" && isHeld(old)) return;
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  changeChildren(old, fresh);
}

function changeChildren(old, fresh) {
  const keyed = new Map([...old.children].filter(keyOf).map((one) => [keyOf(one), one]));
  const kept = new Set([...fresh.children].map(keyOf).filter(Boolean));
  let place = old.firstChild;
  for (const next of [...fresh.childNodes]) {
    while (place && keyOf(place) && !kept.has(keyOf(place))) {
      const gone = place;
      place = place.nextSibling;
      gone.remove();
    }
    const known = keyed.get(keyOf(next));
    if (known && known.nodeName === next.nodeName) {
      if (known === place) place = place.nextSibling;
      else old.insertBefore(known, place);
      change(known, next);
    } else if (place && fits(place, next)) {
      const same = place;
      place = place.nextSibling;
      change(same, next);
    } else {
      old.insertBefore(document.importNode(next, true), place);
    }
  }
  while (place) {
    const gone = place;
    place = place.nextSibling;
    gone.remove();
  }
}

const followed = new WeakSet();

function toEnd(main) {
  for (const output of main.querySelectorAll("pre.output")) {
    if (followed.has(output)) continue;
    followed.add(output);
    output.scrollTop = output.scrollHeight;
  }
}

async function again(main) {
  let text;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (answer.redirected) return location.reload();
    if (!answer.ok) throw new Error(String(answer.status));
    text = await answer.text();
  } catch {
    main.dataset.stale = "";
    return setTimeout(again, EVERY, main);
  }
  const fresh = new DOMParser().parseFromString(text, "text/html").querySelector("main");
  change(main, fresh);
  toEnd(main);
  if ("live" in main.dataset) setTimeout(again, EVERY, main);
}

const main = document.querySelector("main[data-live]");
if (main) {
  toEnd(main);
  setTimeout(again, EVERY, main);
}
