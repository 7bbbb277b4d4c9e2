// Output is appended; its end stays in sight unless one scrolls.
const [log, follows, news, none] = ["log", "follows", "log-new", "log-none"].map((id) => document.getElementById(id));
let sticks = true, unseen = 0, after = log.dataset.after;

function stick(on) {
  sticks = on;
  follows.ariaPressed = on;
  if (on) {
    unseen = 0;
    log.scrollTop = log.scrollHeight;
  }
  news.hidden = !unseen;
  news.textContent = `${unseen} new line${unseen === 1 ? "" : "s"}`;
}

// At most 5,000 lines stay.
function add(text) {
  const all = log.textContent + text, high = log.scrollHeight;
  const lost = all.length - all.split("\n").slice(-5001).join("\n").length;
  log.firstChild ?? log.append("");
  if (lost) log.firstChild.deleteData(0, lost);
  if (lost && !sticks) log.scrollTop -= high - log.scrollHeight;
  log.firstChild.appendData(text.slice(-all.length + lost));
  none.hidden = true;
  unseen += text.split("\n").length - 1;
  stick(sticks);
}

async function more() {
  let isOver = false;
  if (!document.hidden)
    try {
      const answer = await fetch(`${log.dataset.more}&after=${after}`), text = await answer.text();
      if (!answer.ok || answer.redirected) return answer.ok || location.reload();
      const cursor = answer.headers.get("Postroom-Cursor");
      if (text) add(text);
      isOver = cursor === after && answer.headers.has("Postroom-Over");
      after = cursor;
    } catch {} // the server is away: it is asked again
  if (!isOver) setTimeout(more, 1000);
}

addEventListener("click", ({ target }) => {
  if (target.id === "copy")
    navigator.clipboard.writeText(target.value).then(() => (target.textContent = "copied"));
});
// Git is asked after the page is there.
document.dispatchEvent(new CustomEvent("postroom:renew", { detail: ["changes"] }));
log.normalize();
log.onscroll = () => stick(log.scrollTop + log.clientHeight >= log.scrollHeight - 8);
news.onclick = () => stick(true);
follows.onclick = () => stick(!sticks);
stick(true);
if ("open" in log.dataset) {
  follows.hidden = false;
  more();
}
