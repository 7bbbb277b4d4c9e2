// Notifications: by the push service of this browser, or by this page while it is hidden.
const MODE = "postroom/notify", TOLD = "postroom/told";
const form = document.getElementById("notify"), says = form.querySelector("[role=status]");
const button = (name) => form.querySelector(`[value="${name}"]`);
const rows = () => [...document.querySelectorAll("[data-item]")].map((row) => row.dataset.key).join();
const canNotify = isSecureContext && "Notification" in window && "serviceWorker" in navigator;
let seen = rows();

// "page", or the id of the subscription; empty if it is off.
const mode = () => localStorage[MODE] ?? "";

async function ask(fields) {
  const options = fields && { method: "POST", body: new URLSearchParams({ form_token: form.form_token.value, ...fields }) };
  const answer = await fetch(`/push?subscription=${mode()}`, { headers: { Accept: "application/json" }, ...options });
  const told = await answer.json();
  if (!answer.ok) throw new Error([told.message ?? told.detail, told.remedy].filter(Boolean).join(" "));
  return told;
}

async function worker() {
  const registration = await navigator.serviceWorker.register("/static/notify_worker.js");
  while (!registration.active) await new Promise((done) => setTimeout(done, 50));
  return registration;
}

function draw(words = "") {
  const isOn = canNotify && Notification.permission === "granted" && !!mode();
  const isBlocked = canNotify && Notification.permission === "denied";
  button("on").hidden = !canNotify || isBlocked || isOn;
  button("test").hidden = button("off").hidden = !isOn;
  form.by.parentNode.hidden = button("on").hidden || !!form.by.defaultValue;
  const state = !isSecureContext ? "insecure" : !canNotify ? "unable" : isBlocked ? "blocked"
    : !isOn ? "" : mode() === "page" ? "open" : "always";
  says.textContent = words || (says.dataset[state] ?? "");
  says.hidden = !says.textContent;
  form.hidden = false;
}

async function switchOn() {
  const by = form.by.value.trim();
  if (!by) return form.by.focus();
  if ((await Notification.requestPermission()) !== "granted") return draw();
  const registration = await worker();
  let made, reason = says.dataset.none;
  try {
    const { key } = await ask();
    if (key) {
      await (await registration.pushManager.getSubscription())?.unsubscribe(); // of another key
      made = await registration.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: key });
      const { endpoint, keys } = made.toJSON();
      localStorage[MODE] = (await ask({ do: "on", endpoint, ...keys, by })).subscription;
      return draw();
    }
  } catch (error) {
    await made?.unsubscribe();
    reason = error.message;
  }
  await ask({ do: "page", by });
  localStorage[MODE] = "page";
  await tell();
  draw(`${says.dataset.open} ${says.dataset.why} ${reason}`);
}

async function switchOff() {
  const before = mode(), registration = await worker();
  delete localStorage[MODE];
  await (await registration.pushManager?.getSubscription())?.unsubscribe();
  for (const shown of await registration.getNotifications()) shown.close();
  if (before !== "page") await ask({ do: "off", subscription: before });
  draw();
}

async function test() {
  if (mode() === "page") (await worker()).active.postMessage({ title: "postroom", body: says.dataset.test, tag: "test" });
  else await ask({ do: "test", subscription: mode() });
  draw(says.dataset.sent);
}

form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("click", ({ target }) => {
  const act = { on: switchOn, off: switchOff, test }[target.value];
  if (act) act().catch((error) => draw(`That did not work: ${error.message}`));
});

// Of several tabs one at a time shows what is new, so each question is shown once.
function tell() {
  return navigator.locks.request(MODE, async () => {
    const { notices } = await ask(), registration = await worker();
    const told = new Set(JSON.parse(localStorage[TOLD] ?? "[]"));
    if (document.hidden) for (const notice of notices) if (!told.has(notice.tag)) registration.active.postMessage(notice);
    for (const shown of await registration.getNotifications())
      if (told.has(shown.tag) && !notices.some(({ tag }) => tag === shown.tag)) shown.close();
    localStorage[TOLD] = JSON.stringify(notices.map(({ tag }) => tag));
  });
}

const tellHere = () => canNotify && mode() === "page" && tell().catch(() => (seen = ""));
document.addEventListener("postroom:changed", () => {
  const before = seen;
  seen = rows();
  if (before !== seen) tellHere();
});

if (!tellHere() && canNotify && mode())
  ask().then(({ is_on: isOn }) => { // a logout ends it
    if (!isOn) delete localStorage[MODE];
    draw();
  }, () => {});
draw();
