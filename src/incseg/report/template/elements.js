// Shared by the other scripts. Names come from outside, so they are only ever set as text.
const report = JSON.parse(document.getElementById("data").textContent);

const find = (selector) => document.querySelector(selector);

/** A new element; children that are strings become text, never markup. */
function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** Show an element that needs scripts, and hide what replaces it for readers without scripts. */
function reveal(element) {
  element.hidden = false;
  for (const substitute of element.parentElement.querySelectorAll(":scope > .without-scripts")) substitute.hidden = true;
}
