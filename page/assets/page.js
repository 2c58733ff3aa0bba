// The page of a service proxy. All data from the proxy goes on the page as text, never as HTML.
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

async function get(path, parameters, signal) {
  const response = await fetch(path + '?' + new URLSearchParams(parameters), { signal });
  if (!response.ok) throw new Error((await response.text()).trim());
  return response.json();
}

// ---- times

function ago(at) {
  const s = Math.max(0, Math.round((Date.now() - new Date(at)) / 1000));
  if (s < 90) return s + ' s ago';
  if (s < 5400) return Math.round(s / 60) + ' min ago';
  if (s < 172800) return Math.round(s / 3600) + ' h ago';
  return Math.round(s / 86400) + ' days ago';
}

const time = (at) => (at ? element('time', { datetime: at, title: at }, ago(at)) : 'never');

setInterval(() => {
  for (const t of document.querySelectorAll('time')) {
    const text = ago(t.dateTime);
    if (t.textContent !== text) t.textContent = text;
  }
}, 1000);

// ---- the list of services

const list = { offset: 0, total: 0, names: new Set(), request: null, timer: 0 };
let chosen = null; // the selected service: {namespace, name}

const fullName = (n) => n.namespace + '/' + n.name;
const linkTo = (n) => '#/service/' + encodeURIComponent(n.namespace) + '/' + encodeURIComponent(n.name);
const isChosen = (n) => chosen && n.namespace === chosen.namespace && n.name === chosen.name;

async function loadList() {
  list.request?.abort();
  const request = (list.request = new AbortController());
  try {
    const answer = await get('api/services',
      { q: $('q').value, problems: $('problems').checked, offset: list.offset }, request.signal);
    if (answer.services.length === 0 && list.offset > 0) {
      list.offset = 0;
      return loadList();
    }
    showList(answer);
  } catch (e) {
    if (e.name !== 'AbortError') $('count').textContent = e.message;
  }
}

// refreshList reloads the list, at most once a second.
function refreshList() {
  list.timer ||= setTimeout(() => { list.timer = 0; loadList(); }, 1000);
}

function showList(answer) {
  const n = answer.services.length;
  list.total = answer.total;
  list.names = new Set(answer.services.map((s) => fullName(s.name)));
  $('count').textContent = answer.total === 0 ? 'No service matches.'
    : n < answer.total ? `${answer.offset + 1} to ${answer.offset + n} of ${answer.total} services`
      : answer.total === 1 ? '1 service' : `${answer.total} services`;
  const focused = document.activeElement?.getAttribute('href');
  $('rows').replaceChildren(...answer.services.map((s) => element('li', {}, row(s))));
  if (focused?.startsWith('#/service/')) { // the focused row keeps the focus
    [...$('rows').querySelectorAll('a')].find((a) => a.getAttribute('href') === focused)?.focus();
  }
  $('previous').disabled = answer.offset === 0;
  $('next').disabled = answer.offset + n >= answer.total;
  $('previous').parentNode.hidden = n === answer.total;
}

function row(s) {
  const a = element('a', { class: 'row', href: linkTo(s.name), 'aria-current': isChosen(s.name) ? 'true' : undefined },
    element('div', { class: 'name' }, s.name.name + ' ', element('small', {}, s.name.namespace)),
    element('div', { class: 'meta' }, element('span', {}, s.clusterIPs[0] ?? 'headless'),
      element('span', {}, s.ports.join(' ') + (s.morePorts ? ` +${s.morePorts}` : '')),
      element('span', {}, s.endpoints === 1 ? '1 endpoint' : s.endpoints + ' endpoints')));
  if (s.problem) a.append(element('div', { class: 'problem' }, '▲ ' + s.problem));
  return a;
}

function markChosen() {
  for (const a of $('rows').querySelectorAll('a')) {
    if (chosen && a.getAttribute('href') === linkTo(chosen)) a.setAttribute('aria-current', 'true');
    else a.removeAttribute('aria-current');
  }
}

// ---- one service

let tab = 0;
let rulesOpen = false;

async function loadService() {
  const name = chosen;
  if (!name) {
    $('service').replaceChildren(element('p', { class: 'placeholder' }, 'Choose a service to see where its traffic goes.'));
    return;
  }
  try {
    const s = await get('api/service', name);
    if (chosen === name) showService(s);
  } catch (e) {
    if (chosen !== name) return;
    $('service').replaceChildren(back(), element('h2', {}, fullName(name)), element('p', { class: 'warning' }, e.message));
  }
}

const back = () => element('a', { class: 'back', href: '#/' }, '← All services');

function showService(s) {
  const parts = [back(), element('h2', {}, fullName(s.name))];
  if (s.service) parts.push(facts(s.service));
  if (s.summary?.problem) parts.push(element('p', { class: 'warning' }, s.summary.problem));
  for (const note of s.notes ?? []) parts.push(element('p', { class: 'note' }, note));
  if (tab >= s.pictures.length) tab = 0;
  if (s.pictures.length > 1) {
    parts.push(element('div', { class: 'tabs', role: 'group', 'aria-label': 'Port and family' },
      ...s.pictures.map((p, i) => {
        const number = s.service.ports.find((q) => q.name === p.port.port && q.protocol === p.port.protocol)?.port;
        const b = element('button', { type: 'button', 'aria-pressed': String(i === tab) },
          `${p.port.port} ${number}/${p.port.protocol} · ${p.family}`.trim());
        b.addEventListener('click', () => { tab = i; showService(s); $('service').querySelectorAll('.tabs button')[i].focus(); });
        return b;
      })));
  }
  if (s.morePictures) parts.push(element('p', { class: 'note' }, `and ${s.morePictures} more ports and families`));
  const p = s.pictures[tab];
  if (p) {
    parts.push(element('figure', {}, picture(p),
      element('figcaption', {}, topology(p.topology ?? ''))), endpointTable(p), packets(p));
  }
  if (s.rules || s.rulesError) {
    const d = element('details', {}, element('summary', {}, 'Rules of the backend'),
      s.rulesError ? element('p', { class: 'warning' }, s.rulesError) : '', element('pre', { tabindex: '0' }, s.rules ?? ''));
    d.open = rulesOpen;
    d.addEventListener('toggle', () => { rulesOpen = d.open; });
    parts.push(d);
  }
  $('service').replaceChildren(...parts);
}

// topology tells whether hints select the endpoints.
function topology(text) {
  if (text === '') return '';
  return text.startsWith('none: ') ? 'Not selected by topology: ' + text.slice(6) : 'Selected by topology: ' + text;
}

function facts(s) {
  const fact = (name, value) => (value ? element('span', {}, name + ' ', element('b', {}, value)) : '');
  return element('div', { class: 'facts' }, fact('type', s.type), fact('addresses', (s.clusterIPs ?? []).join(', ')),
    fact('internal policy', s.internalTrafficPolicy), fact('external policy', s.externalTrafficPolicy),
    fact('session affinity', s.sessionAffinityTimeout),
    fact('source ranges', (s.loadBalancerSourceRanges ?? []).slice(0, 8).join(', ')),
    fact('health check port', s.healthCheck?.nodePort));
}

function endpointTable(p) {
  const rows = p.groups.flatMap((g) => [
    ...g.endpoints.map((e) => element('tr', { class: g.used ? 'used' : 'unused' }, element('td', { class: 'mono' }, e.target),
      element('td', {}, e.pod ?? ''), element('td', {}, (e.node ?? '') + (e.local ? ' (this node)' : '')),
      element('td', {}, g.title + (e.why ? ': ' + e.why : '')))),
    g.more ? element('tr', {}, element('td', { colspan: '4' }, `and ${g.more} more: ${g.title}`)) : '',
  ]).filter((r) => r !== '');
  if (rows.length === 0) return element('p', { class: 'note' }, 'No endpoints are known.');
  return element('div', {}, element('h3', {}, 'Endpoints'), element('div', { class: 'scroll' }, element('table', {},
    element('thead', {}, element('tr', {}, ...['Address', 'Pod', 'Node', 'Used'].map((t) => element('th', { scope: 'col' }, t)))),
    element('tbody', {}, ...rows))));
}

// packets returns links that trace a packet to each of the addresses.
function packets(p) {
  const to = [...new Set(p.ways.flatMap((w) => w.to))];
  return element('div', {}, element('h3', {}, 'Trace a packet to'), element('div', { class: 'facts' },
    ...to.map((t) => element('a', { class: 'mono', href: '#/packet?to=' + encodeURIComponent(t) }, t))));
}

// ---- the picture

const columns = { from: [0, 144], to: [174, 226], policy: [424, 252], group: [716, 284] }; // left, width
const maxDrawn = 6; // endpoints of a group

// short truncates a text to a number of characters.
const short = (text, n) => (text.length > n ? text.slice(0, n - 1) + '…' : text);

// box draws a box whose lines are [class, text]; it returns its height.
function box(to, [x, width], y, kind, lines, characters) {
  const height = lines.length * 18 + 16;
  const g = drawing('g', {}, drawing('rect', { x: x + 0.75, y: y + 0.75, width: width - 1.5, height: height - 1.5, rx: 8, class: kind }));
  lines.forEach(([className, text], i) => {
    const t = drawing('text', { x: x + 12, y: y + 24 + i * 18, class: className }, short(text, characters));
    if (text.length > characters) t.append(drawing('title', {}, text));
    g.append(t);
  });
  to.append(g);
  return height;
}

function curve(x1, y1, x2, y2, className) {
  const m = (x1 + x2) / 2;
  return drawing('path', { d: `M${x1} ${y1}C${m} ${y1} ${m} ${y2} ${x2} ${y2}`, class: className });
}

function groupLines(g) {
  const lines = [['strong', g.title]];
  for (const e of g.endpoints.slice(0, maxDrawn)) {
    lines.push(['code', e.target]);
    const detail = g.used ? [e.pod, e.node && (e.local ? 'this node' : 'on ' + e.node)] : [e.why, e.pod];
    if (detail.some(Boolean)) lines.push(['soft', detail.filter(Boolean).join(' · ')]);
  }
  const more = g.more ?? 0;
  const hidden = g.endpoints.length - Math.min(g.endpoints.length, maxDrawn) + more;
  if (hidden > 0) lines.push(['soft', `and ${hidden} more`]);
  return lines;
}

function picture(p) {
  const boxes = drawing('g');
  const paths = drawing('g');
  const head = (x, text) => boxes.append(drawing('text', { x, y: 14, class: 'head' }, text));
  head(columns.from[0], 'Sender');
  head(columns.to[0], 'Address');
  head(columns.policy[0], 'Policy');
  head(columns.group[0], 'Endpoints');

  // The right column: groups in use, what happens to packets without an endpoint, groups not in use.
  const right = [
    ...p.groups.map((g, i) => ({ key: i, kind: g.used ? 'used' : 'unused', lines: groupLines(g) })),
    ...[...new Set(p.ways.map((w) => w.empty).filter(Boolean))].map((e) => ({ key: e, kind: 'empty', lines: [['bad', e]] })),
  ].sort((a, b) => (a.kind === 'unused') - (b.kind === 'unused'));
  const gap = 16;
  const heights = p.ways.map((w) => Math.max(3, w.to.length + 1 + (w.moreTo ? 1 : 0)) * 18 + 16);
  const leftHeight = heights.reduce((a, b) => a + b + gap, -gap);
  const rightHeight = right.reduce((a, r) => a + r.lines.length * 18 + 16 + gap, -gap);
  const total = Math.max(leftHeight, rightHeight, 40);
  const top = 28;

  const at = new Map();
  let y = top + Math.max(0, (total - rightHeight) / 2);
  for (const r of right) {
    const h = box(boxes, columns.group, y, r.kind, r.lines, 36);
    at.set(r.key, y + h / 2);
    y += h + gap;
  }
  y = top + Math.max(0, (total - leftHeight) / 2);
  p.ways.forEach((w, i) => {
    const middle = y + heights[i] / 2;
    const place = (column, kind, lines, characters) => box(boxes, column, middle - (lines.length * 18 + 16) / 2, kind, lines, characters);
    place(columns.from, 'sender', [['strong', w.from]], 17);
    place(columns.to, 'address', [['soft', w.kind], ...w.to.map((t) => ['code', t]),
      ...(w.moreTo ? [['soft', `and ${w.moreTo} more`]] : [])], 29);
    place(columns.policy, 'policy', [['strong', w.policy], ['soft', w.source + ' · ' + w.rule]], 34);
    const end = ([x, width]) => x + width;
    paths.append(curve(end(columns.from), middle, columns.to[0], middle, 'soft'),
      curve(end(columns.to), middle, columns.policy[0], middle, 'soft'));
    for (const g of w.groups) paths.append(curve(end(columns.policy), middle, columns.group[0], at.get(g), 'good'));
    if (w.empty) paths.append(curve(end(columns.policy), middle, columns.group[0], at.get(w.empty), 'bad'));
    y += heights[i] + gap;
  });

  const words = p.ways.map((w) => `${w.from} to ${w.to.join(', ')}: ${w.policy}, ${w.source}; ` +
    (w.empty || w.groups.map((g) => `${p.groups[g].endpoints.length + (p.groups[g].more ?? 0)} ${p.groups[g].title}`).join(', ')));
  return drawing('svg', { viewBox: `0 0 1000 ${top + total + 4}`, role: 'img', 'aria-label': 'The paths of the traffic. ' + words.join('. ') },
    paths, boxes);
}

// ---- a packet

let question = 0; // the number of the last one: answers to others come too late

async function trace(event) {
  event?.preventDefault();
  const number = ++question;
  const kind = $('from').value;
  const text = `${kind} ${$('source').value.trim()}`.trim() + ` -> ${$('to').value.trim()}/${$('protocol').value}`;
  try {
    const answer = await get('api/flow', { q: text });
    if (number === question) showAnswer(answer);
  } catch (e) {
    if (number === question) $('answer').replaceChildren(element('p', { class: 'warning' }, e.message));
  }
}

const verdicts = { deliver: 'is delivered', reject: 'is rejected', drop: 'is dropped', 'not ours': 'is left alone: no service has it' };

function showAnswer(a) {
  const f = a.outcome.flow;
  $('answer').replaceChildren(
    element('p', { class: 'flowtext' }, `${f.from} ${f.source} → ${f.destination}/${f.protocol}`),
    ...(a.notes ?? []).map((n) => element('p', { class: 'note' }, n)), ...outcome(a.outcome, a.more?.[0]),
    ...(a.outcome.alsoAllowed ?? []).map((o, i) => element('div', { class: 'also' },
      element('p', { class: 'lead' }, 'or, equally right:'), ...outcome(o, a.more?.[i + 1]))));
}

function outcome(o, more) {
  const parts = [element('p', { class: 'verdict ' + o.verdict.replace(' ', '-') }, 'The packet ' + (verdicts[o.verdict] ?? o.verdict))];
  if (o.endpoints) {
    parts.push(element('h3', {}, o.endpoints.length === 1 ? 'To' : 'To one of'), element('div', { class: 'scroll' }, element('table', {},
      ...o.endpoints.map((d) => element('tr', {}, element('td', { class: 'mono' }, d.endpoint), element('td', {}, d.pod ?? ''),
        element('td', {}, d.node ?? ''), element('td', {}, d.sourceNAT ? 'masqueraded' : 'keeps the source address'))))));
    if (more) parts.push(element('p', { class: 'lead' }, `and ${more} more`));
  }
  parts.push(element('h3', {}, 'Because'), element('ol', { class: 'reasons' },
    ...o.reasons.map((r) => element('li', {}, r.text, r.rule ? element('span', { class: 'rule', title: 'rule of docs/semantics.md' }, r.rule) : ''))));
  return parts;
}

function showSource() {
  const kind = $('from').value;
  $('source-label').hidden = kind === 'node';
  if (kind === 'node') $('source').value = '';
  $('source-label').firstChild.textContent = kind === 'pod' ? 'Address or namespace/name' : 'Address';
  $('source').placeholder = kind === 'pod' ? '10.1.1.5' : '203.0.113.7';
}

// ---- activity

let events = [];

function showState(m) {
  $('node').textContent = m.node ? `node ${m.node.name || '?'}${m.node.zone ? ', ' + m.node.zone : ''} · ${m.services} services` : 'waiting for the cluster';
  document.title = m.node ? `${m.node.name} · service proxy` : 'Service proxy';
  const bad = m.sync?.error || m.failing > 0;
  const chips = m.families.map((f) => element('li', { class: f.healthy ? '' : 'bad' }, f.family + ' applied ', time(f.lastApplied)));
  if (chips.length === 0 && m.sync) chips.push(element('li', { class: bad ? 'bad' : '' }, 'synced ', time(m.sync.at)));
  if (m.phase && m.phase !== 'serving') chips.push(element('li', { class: 'bad' }, m.phase));
  if (bad) chips.push(element('li', { class: 'bad' }, m.failing > 0 ? `${m.failing} services failing` : 'last sync failed'));
  $('health').replaceChildren(...chips);

  const term = (name, value) => [element('dt', {}, name), element('dd', {}, value)];
  const cards = m.families.map((f) => element('div', {}, element('h3', {}, f.family), element('dl', {},
    ...term('last change', time(f.lastQueued)), ...term('last applied', time(f.lastApplied)),
    ...(f.oldestPending ? term('waiting since', time(f.oldestPending)) : []), ...term('healthy', f.healthy ? 'yes' : 'no'))));
  if (m.sync) {
    cards.push(element('div', {}, element('h3', {}, 'Last sync'), element('dl', {}, ...term('ended', time(m.sync.at)),
      ...term('took', m.sync.duration), ...term('services', String(m.services)), ...term('endpoints', String(m.endpoints)))));
  }
  $('families').replaceChildren(...cards);
  $('last-error').replaceChildren(m.sync?.error ? element('p', { class: 'warning' }, m.sync.error) : '');

  const repairs = m.repairs?.last ?? [];
  $('repairs').replaceChildren(...(repairs.length === 0
    ? [element('p', {}, m.repairs ? 'Nothing had to be repaired.' : 'This backend does not report repairs.')]
    : [element('p', {}, `${m.repairs.total} in total`), element('ul', {}, ...repairs.map((r) =>
      element('li', { class: r.error ? 'error' : '' }, time(r.at), element('span', {}, r.family + (r.error ? ' failed: ' + r.error : ' repaired')))))]));

  const last = events[0]?.number ?? 0;
  const fresh = m.events.filter((e) => e.number > last);
  if (m.all && m.events[0] && m.events[0].number < last) events = []; // another process
  events = [...(events.length ? fresh : m.events), ...events].slice(0, 200);
  $('events').replaceChildren(...events.map((e) => element('li', { class: e.kind }, time(e.at), element('span', {},
    e.service ? element('a', { href: linkTo(e.service) }, fullName(e.service)) : '', (e.service ? ' ' : '') + e.text))));
}

// ---- messages from the proxy, and navigation

function follow() {
  const source = new EventSource('api/events');
  source.onopen = () => { $('offline').hidden = true; };
  source.onerror = () => {
    $('offline').hidden = false;
    if (source.readyState === EventSource.CLOSED) setTimeout(follow, 5000); // refused: the browser does not retry
  };
  source.onmessage = (event) => {
    const m = JSON.parse(event.data);
    showState(m);
    const changed = m.changed ?? [];
    if (m.all || m.listed || changed.some((n) => list.names.has(fullName(n)))) refreshList();
    if (m.all || changed.some(isChosen)) loadService();
  };
}

function navigate() {
  const [path, query] = location.hash.slice(1).split('?');
  const [, view = '', ...names] = path.split('/');
  const current = ['packet', 'activity'].includes(view) ? view : 'services';
  for (const id of ['services', 'packet', 'activity']) $(id).hidden = id !== current;
  for (const a of document.querySelectorAll('nav a')) {
    if (a.dataset.view === current) a.setAttribute('aria-current', 'page');
    else a.removeAttribute('aria-current');
  }
  if (current === 'packet') {
    const to = new URLSearchParams(query).get('to');
    if (to) {
      const i = to.lastIndexOf('/');
      $('to').value = to.slice(0, i);
      $('protocol').value = to.slice(i + 1);
      question++;
      $('answer').replaceChildren();
      ($('from').value === 'node' ? $('to') : $('source')).focus();
    }
    return;
  }
  if (current !== 'services') return;
  let next = null;
  try {
    if (view === 'service') next = { namespace: decodeURIComponent(names[0] ?? ''), name: decodeURIComponent(names.slice(1).join('/')) };
  } catch { /* an invalid link selects nothing */ }
  const same = next && isChosen(next);
  chosen = next;
  $('services').classList.toggle('chosen', Boolean(chosen));
  markChosen();
  if (!same) {
    tab = 0;
    loadService();
  }
}

// keys: / focuses the search, the arrows move through the list.
document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const inField = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === '/' && !inField) {
    location.hash = location.hash.startsWith('#/service') ? location.hash : '#/';
    event.preventDefault();
    $('q').focus();
  }
  if (event.key !== 'ArrowDown' && event.key !== 'ArrowUp') return;
  const links = [...$('rows').querySelectorAll('a')];
  const i = links.indexOf(document.activeElement);
  if (i < 0 && event.target !== $('q')) return;
  event.preventDefault();
  const next = i + (event.key === 'ArrowDown' ? 1 : -1);
  (links[next] ?? (next < 0 ? $('q') : links[i]))?.focus();
});

let typing = 0;
$('q').addEventListener('input', () => {
  clearTimeout(typing);
  typing = setTimeout(() => { list.offset = 0; loadList(); }, 150);
});
$('problems').addEventListener('change', () => { list.offset = 0; loadList(); });
$('find').addEventListener('submit', (event) => {
  event.preventDefault();
  $('rows').querySelector('a')?.click();
});
$('previous').addEventListener('click', () => { list.offset = Math.max(0, list.offset - 100); loadList(); });
$('next').addEventListener('click', () => { list.offset += 100; loadList(); });
$('flow').addEventListener('submit', trace);
$('from').addEventListener('change', showSource);
addEventListener('hashchange', navigate);
document.querySelector('.skip').addEventListener('click', (event) => {
  event.preventDefault(); // the fragment of the address says which view is shown
  $('main').focus();
});

showSource();
navigate();
loadList();
follow();
