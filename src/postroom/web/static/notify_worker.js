// Shows what needs a person, and sends a yes or no. It intercepts no request of a page.
const BUTTONS = { yes: "Yes", no: "No", open: "Open" };

addEventListener("install", () => skipWaiting());
addEventListener("push", (event) => event.waitUntil(show(event.data.json())));
addEventListener("message", (event) => event.waitUntil(show(event.data)));
addEventListener("notificationclick", (event) => event.waitUntil(clicked(event.notification, event.action)));

// A device that wakes up gets a question and its end at once, so one notification is shown after another.
const show = (notice, isResult) => navigator.locks.request("notifications", () => showNow(notice, isResult));

async function showNow(notice, isResult) {
  const { title, body, tag, answer, is_closed: isClosed } = notice, most = Notification.maxActions ?? 0;
  const shown = await registration.getNotifications({ tag });
  // A click beside the buttons opens the page. A yes is never offered without a no.
  const names = isClosed || (answer && most < 2) ? [] : [...(answer ? ["yes", "no"] : []), "open"].slice(0, most);
  const actions = names.map((action) => ({ action, title: BUTTONS[action] }));
  // Browsers require that each push shows something, so what was dismissed is shown and closed. It has a tag of its own,
  // because a browser may also close the next notification that has the same tag.
  const isGone = isClosed && !isResult && !shown.length, label = isGone ? `${tag}/end` : tag;
  await registration.showNotification(title, {
    body, tag: label, actions, data: notice, silent: !!isClosed, requireInteraction: !!answer && !isClosed,
  });
  if (isGone) for (const one of await registration.getNotifications({ tag: label })) one.close();
}

async function clicked(notification, action) {
  const notice = notification.data;
  if (!notice.answer || !["yes", "no"].includes(action)) {
    notification.close();
    return clients.openWindow(notice.url ?? "/");
  }
  let answered, told;
  try {
    const body = new URLSearchParams({ ...notice.answer, do: action });
    answered = await fetch("/push", { method: "POST", headers: { Accept: "application/json" }, body });
    told = await answered.json();
  } catch {
    // The same answer counts once, so it can be sent again.
    return show({ ...notice, title: `No reply to your answer: ${notice.title}` });
  }
  if (!answered.ok) {
    const why = [told.message ?? told.detail, told.remedy].filter(Boolean).join(" ");
    told = { title: "Not answered", body: answered.status === 401 ? "You are logged out. Log in, and answer on the page." : why };
  }
  return show({ ...told, tag: notice.tag, url: notice.url, is_closed: true }, true);
}
