// What all scripts of the page use. All data from the proxy goes on the page as text, never as HTML.
'use strict';

const $ = (id) => document.getElementById(id);

// element creates an HTML element; children are elements and strings.
function element(tag, attributes = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) e.setAttribute(name, value);
  }
  e.append(...children.filter((c) => c !== undefined && c !== ''));
  return e;
}

// drawing creates an SVG element.
function drawing(tag, attributes = {}, ...children) {
  const e = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  e.append(...children);
  return e;
}

// button creates a button that does something.
function button(attributes, text, act) {
  const b = element('button', { type: 'button', ...attributes }, text);
  b.addEventListener('click', act);
  return b;
}

// replace gives an element other children, unless they are the same. A link or button that has the focus keeps it.
function replace(parent, ...children) {
  const next = element('div', {}, ...children);
  if (next.childNodes.length === parent.childNodes.length &&
    [...next.childNodes].every((n, i) => n.isEqualNode(parent.childNodes[i]))) return;
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const same = (e) => e.isEqualNode(focused) ||
    (focused.hasAttribute('href') && e.getAttribute('href') === focused.getAttribute('href'));
  parent.replaceChildren(...next.childNodes);
  if (!focused || focused === parent) return;
  [...parent.querySelectorAll('a, button, summary, pre')].find(same)?.focus({ preventScroll: true });
}

async function get(path, parameters = {}, signal) {
  const response = await fetch(path + '?' + new URLSearchParams(parameters), { signal });
  if (!response.ok) throw new Error((await response.text()).trim());
  return response.json();
}

// ---- words

const plural = (n, what) => `${n} ${what}${n === 1 ? '' : 's'}`;
const fullName = (n) => n.namespace + '/' + n.name;
const linkTo = (n) => '#/service/' + encodeURIComponent(n.namespace) + '/' + encodeURIComponent(n.name);

function ago(at) {
  const s = Math.max(0, Math.round((Date.now() - new Date(at)) / 1000));
  if (s < 90) return s + ' s ago';
  if (s < 5400) return Math.round(s / 60) + ' min ago';
  if (s < 172800) return Math.round(s / 3600) + ' h ago';
  return Math.round(s / 86400) + ' days ago';
}

const time = (at) => (at ? element('time', { datetime: at, title: at }, ago(at)) : 'never');

// took is a number of microseconds in words.
function took(us) {
  if (us < 1000) return us + ' µs';
  if (us < 1e6) return (us / 1000).toPrecision(2).replace(/\.0$/, '') * 1 + ' ms';
  return (us / 1e6).toFixed(1) + ' s';
}

setInterval(() => {
  for (const t of document.querySelectorAll('time')) {
    const text = ago(t.dateTime);
    if (t.textContent !== text) t.textContent = text;
  }
}, 1000);

// ---- the rules of docs/semantics.md

let rules = null; // their texts by number, once somebody has asked for one

// rule is a button that shows the text of a rule.
const rule = (number) => button({ class: 'rule', 'aria-haspopup': 'dialog', title: 'Show rule ' + number }, number,
  () => showRule(number));

async function showRule(number) {
  $('rule-title').textContent = 'Rule ' + number;
  $('rule-text').textContent = '…';
  $('rule').showModal();
  try {
    rules ??= await get('rules.json');
    $('rule-text').textContent = rules[number] ?? 'This version has no such rule.';
  } catch (e) {
    $('rule-text').textContent = e.message;
  }
}
