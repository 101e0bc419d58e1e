// On every page: parts that change are fetched again, buttons call the API, a phone folds sections.

const refresh = Number(document.body.dataset.refresh || 0);

// Libraries that draw write styles as attributes, which the policy of these pages refuses. As
// properties they are allowed.
const write = Element.prototype.setAttribute;
Element.prototype.setAttribute = function (name, value) {
  if (name === "style") this.style.cssText = value;
  else write.call(this, name, value);
};

function fold(page) {
  if (!matchMedia("(max-width: 48rem)").matches) return; // as in the stylesheet
  for (const each of page.querySelectorAll("details[data-folds]")) each.open = false;
}
fold(document);

// What a link leads to is shown, also within sections that are folded.
function reveal() {
  const target = document.querySelector(":target");
  for (let part = target?.closest("details"); part; part = part.parentElement.closest("details")) part.open = true;
  target?.scrollIntoView();
}
reveal();
addEventListener("hashchange", reveal);

// What a person opened or closed stays so when the part is renewed.
function keepOpen(part, newer) {
  const before = part.querySelectorAll("details");
  newer.querySelectorAll("details").forEach((each, at) => {
    if (before[at]) each.open = before[at].open;
  });
}

// Whether somebody stands at a control of a part, or has marked words in it: then it stays as it is.
function isInUse(part) {
  const at = document.activeElement;
  const marked = getSelection();
  const isMarked = !marked.isCollapsed && part.contains(marked.anchorNode);
  return isMarked || (part.contains(at) && at.matches("a, button, input, select, textarea, summary"));
}

// Return the tick of a newer part that stands for one of the part of now. If its row has left the
// table, the row of now is put at the end of it.
function keepTick(part, newer, tick) {
  const same = `input[value="${CSS.escape(tick.value)}"]`;
  if (!newer.querySelector(same)) {
    const at = [...part.querySelectorAll("tbody")].indexOf(tick.closest("tbody"));
    newer.querySelectorAll("tbody")[at]?.append(tick.closest("tr").cloneNode(true));
  }
  return newer.querySelector(same);
}

// Renew a part; return false if it is in use, or if something that was ticked is gone.
function renew(part, newer) {
  const ticks = [...part.querySelectorAll("input:checked")].map((each) => keepTick(part, newer, each));
  if (part.innerHTML === newer.innerHTML) return true;
  if (isInUse(part) || ticks.includes(null)) return false;
  const regions = (of) => [...of.querySelectorAll("[tabindex]")];
  const before = regions(part).map((each) => [each.scrollLeft, each === document.activeElement]);
  part.replaceChildren(...newer.childNodes);
  for (const each of ticks) each.checked = true;
  regions(part).forEach((each, at) => {
    const [left, isActive] = before[at] ?? [0, false];
    each.scrollLeft = left;
    if (isActive) each.focus({ preventScroll: true });
  });
  return true;
}

// Fetch this page again and renew its live parts. Return whether it is over, and all of it is here.
async function update() {
  if (document.hidden) return false;
  let text;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    // signed out in another tab, or deleted
    if ([401, 403, 404].includes(answer.status)) location.reload();
    if (!answer.ok) return false;
    text = await answer.text();
  } catch {
    return false; // the service is away: try again later
  }
  const fresh = new DOMParser().parseFromString(text, "text/html");
  fold(fresh);
  let isWhole = true;
  for (const part of document.querySelectorAll("[data-live]")) {
    const newer = fresh.getElementById(part.id);
    if (!newer) continue;
    keepOpen(part, newer);
    isWhole = renew(part, newer) && isWhole;
  }
  const isOver = !fresh.body.dataset.refresh;
  const looks = []; // what else is fetched: the next look waits for it
  document.dispatchEvent(new CustomEvent("updated", { detail: { isOver, looks } }));
  const ended = await Promise.allSettled(looks);
  if (!isOver || !isWhole || ended.some((each) => each.status === "rejected" && mayPass(each.reason))) return false;
  if (refresh) announce("It is over."); // else it was over before
  return true;
}

export function announce(words) {
  document.getElementById("announcement").textContent = words;
}

// Whether what failed may succeed later: the service or its store was away.
const mayPass = (error) => !(error.problem?.status < 500);

let begun = Promise.resolve(); // what the page has loaded first

// Load what the page shows first; where nothing follows, try again while that fails.
export async function untilDone(load) {
  begun = load();
  try {
    await begun;
  } catch (error) {
    if (refresh) return; // the next look makes it
    announce(error.message);
    if (mayPass(error)) setTimeout(untilDone, 10_000, load);
  }
}

// Return an answer's JSON; throw its problem if it is one.
export async function call(path, options = {}) {
  const answer = await fetch(path, options);
  const content = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(content.detail), { problem: content });
  return content;
}

// The next look follows `refresh` seconds after this one, and up to a minute where looks take long.
async function follow() {
  await begun.catch(() => {}); // two loads at once could end in the wrong order
  const began = performance.now();
  const isOver = await update();
  const taken = performance.now() - began;
  if (!isOver) setTimeout(follow, Math.max(refresh * 1000, Math.min(10 * taken, 60_000)));
}

if (refresh) setTimeout(follow, refresh * 1000);

// A page that the browser kept aside may be old, and its reader may be signed out by now. What was
// typed and ticked on it stays.
addEventListener("pageshow", (event) => event.persisted && update());

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-post]");
  if (!button) return;
  const { ask, field, now } = button.dataset;
  let { body } = button.dataset;
  if (field) {
    const answer = prompt(ask, now); // a number
    if (answer === null || !answer.trim()) return;
    body = JSON.stringify({ [field]: Number(answer) });
  } else if (ask && !confirm(ask)) return;
  button.disabled = true;
  try {
    const made = await call(button.dataset.post, {
      method: "POST",
      ...(body ? { body, headers: { "Content-Type": "application/json" } } : {}),
    });
    if ("open" in button.dataset) location.assign(made.links.page);
    else if ("leave" in button.dataset) location.assign("/");
    else location.reload();
  } catch (error) {
    button.disabled = false;
    announce(error.message);
    alert(error.message);
  }
});
