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

// Fetch this page again and replace its live parts, but none in which somebody types or stands.
// Return whether it is over.
async function update() {
  if (document.hidden) return false;
  let text;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (answer.status === 401) location.reload(); // signed out in another tab
    if (!answer.ok) return false;
    text = await answer.text();
  } catch {
    return false; // the service is away: try again later
  }
  const fresh = new DOMParser().parseFromString(text, "text/html");
  fold(fresh);
  for (const part of document.querySelectorAll("[data-live]")) {
    const newer = fresh.getElementById(part.id);
    if (newer) keepOpen(part, newer);
    const isInUse = part.contains(document.activeElement) && document.activeElement !== part;
    const isChosen = part.querySelector("input:checked") !== null;
    if (newer && !isInUse && !isChosen && part.innerHTML !== newer.innerHTML) part.innerHTML = newer.innerHTML;
  }
  const isOver = !fresh.body.dataset.refresh;
  document.dispatchEvent(new CustomEvent("updated", { detail: { isOver } }));
  if (isOver) announce("It is over.");
  return isOver;
}

export function announce(words) {
  document.getElementById("announcement").textContent = words;
}

// Return an answer's JSON; throw its problem if it is one.
export async function call(path, options = {}) {
  const answer = await fetch(path, options);
  const content = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(content.detail), { problem: content });
  return content;
}

// The next look follows `refresh` seconds after this one, and later where looks take long.
async function follow() {
  const began = performance.now();
  const isOver = await update();
  const taken = performance.now() - began;
  if (!isOver) setTimeout(follow, Math.max(refresh * 1000, 10 * taken));
}

if (refresh) setTimeout(follow, refresh * 1000);

// A page that the browser kept aside may be old, and its reader may be signed out by now.
addEventListener("pageshow", (event) => event.persisted && location.reload());

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
