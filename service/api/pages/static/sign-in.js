// After signing in, the browser comes back to this page.
document.forms[0].place.value = location.pathname + location.search + location.hash;
