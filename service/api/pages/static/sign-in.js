// After signing in, the browser comes back to this page; of its address only the browser knows the end.
document.forms[0].place.value += location.hash;

// A link of another site brings no cookie along, but what this page asks for itself does: who is
// signed in goes on to where the link leads, once.
const here = location.href;
const isAgain = sessionStorage.getItem("asked") === here;
sessionStorage.removeItem("asked");
if (!isAgain && location.pathname !== "/session") {
  fetch(here, { method: "HEAD" }).then((answer) => {
    if (!answer.ok) return;
    sessionStorage.setItem("asked", here);
    history.replaceState(null, "", "/session"); // else an address with a fragment is no new page
    location.replace(here);
  });
}
