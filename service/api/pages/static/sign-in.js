// After signing in, the browser comes back to this page; of its address only the browser knows the end.
document.forms[0].place.value += location.hash;
