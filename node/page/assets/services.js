// The list of services, and one service.
'use strict';

const pageSize = 100;
// wanted is the row that is to get the focus when its page is shown: 0 or -1.
const list = { offset: 0, total: 0, names: new Set(), request: null, timer: 0, top: 0, wanted: null };
let chosen = null; // the selected service: {namespace, name}

const isChosen = (n) => chosen && n.namespace === chosen.namespace && n.name === chosen.name;

async function loadList() {
  list.request?.abort();
  const request = (list.request = new AbortController());
  try {
    const answer = await get('api/services',
      { q: $('q').value, problems: $('problems').checked, offset: list.offset, limit: pageSize }, request.signal);
    if (answer.services.length === 0 && list.offset > 0) {
      list.offset = 0;
      await loadList();
      return;
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
      : plural(answer.total, 'service');
  replace($('rows'), ...answer.services.map((s) => element('li', {}, row(s))));
  $('previous').disabled = answer.offset === 0;
  $('next').disabled = answer.offset + n >= answer.total;
  $('previous').parentNode.hidden = n === answer.total;
  if (!location.hash && n > 0) { // the page was opened without a view
    history.replaceState(null, '', linkTo(richest(answer.services)));
    navigate();
  }
  if (list.wanted !== null && answer.offset === list.offset) {
    [...$('rows').querySelectorAll('a')].at(list.wanted)?.focus();
    list.wanted = null;
  }
}

// richest returns the name of the service that shows most: one that clients outside of the cluster reach, if there is
// one, with the most endpoints.
function richest(services) {
  const outside = (s) => ['LoadBalancer', 'NodePort'].includes(s.type);
  return [...services].sort((a, b) => outside(b) - outside(a) || b.endpoints - a.endpoints)[0].name;
}

function row(s) {
  const a = element('a', { class: 'row', href: linkTo(s.name), 'aria-current': isChosen(s.name) ? 'true' : undefined },
    element('div', { class: 'name' }, element('bdi', {}, s.name.name), ' ', element('small', {}, s.name.namespace)),
    element('div', { class: 'meta' }, element('span', {}, s.clusterIPs[0] ?? 'headless'),
      element('span', {}, s.ports.join(' ') + (s.morePorts ? ` +${s.morePorts}` : '')),
      element('span', {}, plural(s.endpoints, 'endpoint'))));
  if (s.problem) a.append(element('div', { class: 'problem' }, '▲ ' + s.problem));
  return a;
}

function markChosen() {
  for (const a of $('rows').querySelectorAll('a')) {
    if (chosen && a.getAttribute('href') === linkTo(chosen)) a.setAttribute('aria-current', 'true');
    else a.removeAttribute('aria-current');
  }
}

// turn shows the next or previous page of the list, with the focus on its first or last row; it stays where it is if
// there is none.
function turn(by) {
  const offset = list.offset + by * pageSize;
  if (offset < 0 || offset >= list.total) return;
  list.offset = offset;
  list.wanted = by > 0 ? 0 : -1;
  loadList();
}

// moveInList moves the focus from row to row, and on to the next page.
function moveInList(event) {
  const links = [...$('rows').querySelectorAll('a')];
  const i = links.indexOf(document.activeElement);
  if (i < 0 && event.target !== $('q')) return;
  const down = event.key === 'ArrowDown' || event.key === 'PageDown';
  event.preventDefault();
  if (event.key.startsWith('Page')) turn(down ? 1 : -1);
  else if (list.wanted !== null) return; // the next page is on its way
  else if (down && i === links.length - 1) turn(1);
  else if (!down && i === 0 && list.offset > 0) turn(-1);
  else (links[i + (down ? 1 : -1)] ?? (down ? null : $('q')))?.focus();
}

// ---- one service

let tab = 0;
let rulesOpen = false;

// focusMoves counts how often the focus has moved.
let focusMoves = 0;
addEventListener('focusin', () => { focusMoves++; });

// loadService shows the chosen service; the focus goes there if somebody has just chosen it, and has not moved the
// focus since.
async function loadService(justChosen) {
  const name = chosen;
  const moves = focusMoves;
  if (!name) {
    $('service').replaceChildren(element('p', { class: 'placeholder' },
      'Choose a service to see where its traffic goes.'));
    return;
  }
  try {
    const s = await get('api/service', name);
    if (chosen === name) showService(s);
  } catch (e) {
    if (chosen !== name) return;
    $('service').replaceChildren(back(), element('h2', {}, fullName(name)), element('p', { class: 'warning' },
      e.message));
  }
  if (justChosen && chosen === name) {
    $('service').scrollTop = 0;
    const now = document.activeElement;
    if (moves === focusMoves || now === document.body ||
      $('rows').contains(now)) $('service').focus({ preventScroll: true });
    if (getComputedStyle($('service')).position !== 'sticky') scrollTo(0, 0); // the list has given way
  }
}

const back = () => element('a', { class: 'back', href: '#/services' }, '← All services');

// toList leads back to the row of the chosen service.
function toList() {
  const href = chosen && linkTo(chosen);
  location.hash = '#/services';
  const link = [...$('rows').querySelectorAll('a')].find((a) => a.getAttribute('href') === href);
  setTimeout(() => (link ?? $('q')).focus()); // when the list is shown
}

function showService(s) {
  const parts = [back(), element('h2', {}, fullName(s.name))];
  if (s.service) parts.push(facts(s));
  if (s.summary?.problem) parts.push(element('p', { class: 'warning' }, s.summary.problem));
  for (const note of s.notes ?? []) parts.push(element('p', { class: 'note' }, note));
  if (tab >= s.pictures.length) tab = 0;
  if (s.pictures.length > 1) {
    parts.push(element('div', { class: 'tabs', role: 'group', 'aria-label': 'Port and family' },
      ...s.pictures.map((p, i) => {
        const number = s.service.ports.find((q) => q.name === p.port.port && q.protocol === p.port.protocol)?.port;
        return button({ 'aria-pressed': String(i === tab) },
          `${p.port.port} ${number}/${p.port.protocol} · ${p.family}`.trim(),
          () => { tab = i; showService(s); $('service').querySelectorAll('.tabs button')[i].focus(); });
      })));
  }
  if (s.morePictures) parts.push(element('p', { class: 'note' }, `and ${s.morePictures} more ports and families`));
  const p = s.pictures[tab];
  if (p) {
    parts.push(element('figure', {}, picture(p), wayList(p), element('figcaption', {}, element('span', {},
      topology(p.topology ?? '')),
      ...[...new Set(p.ways.map((w) => w.rule))].map(rule))), endpointTable(p), packets(p));
  }
  if (s.rules || s.rulesError) {
    const d = element('details', {}, element('summary', {}, 'Rules of the backend'),
      s.rulesError ? element('p', { class: 'warning' }, s.rulesError) : '', element('pre', { tabindex: '0',
        'aria-label': 'Rules of the backend' }, s.rules ?? ''));
    d.open = rulesOpen;
    d.addEventListener('toggle', () => { rulesOpen = d.open; });
    parts.push(d);
  }
  const top = $('service').scrollTop;
  $('service').replaceChildren(...parts);
  $('service').scrollTop = top;
}

// topology tells whether topology hints narrow down the endpoints.
function topology(text) {
  if (text === '') return '';
  if (text === 'none: no endpoint has a hint') return 'All ready endpoints count: none has a topology hint.';
  return text.startsWith('none: ') ? 'Topology hints do not count: ' + text.slice(6)
    : 'Topology hints narrow down the endpoints: ' + text;
}

function facts({ service: s }) {
  const fact = (name, value) => (value ? element('span', {}, name + ' ', element('b', {}, value)) : '');
  return element('div', { class: 'facts' }, fact('type', s.type), fact('addresses', (s.clusterIPs ?? []).join(', ')),
    fact('internal policy', s.internalTrafficPolicy), fact('external policy', s.externalTrafficPolicy),
    fact('session affinity', s.sessionAffinityTimeout),
    fact('source ranges', (s.loadBalancerSourceRanges ?? []).slice(0, 8).join(', ')),
    fact('health check port', s.healthCheck?.nodePort));
}

function endpointTable(p) {
  const columns = ['Address', 'Pod', 'Node', 'Used'];
  const rows = p.groups.flatMap((g) => [
    ...g.endpoints.map((e) => element('tr', { class: g.used ? 'used' : 'unused' },
      ...[e.target, e.pod ?? '', (e.node ?? '') + (e.local ? ' (this node)' : ''), g.title + (e.why ? ': ' + e.why
        : '')].map((text, i) =>
        element('td', { class: i === 0 ? 'mono' : undefined, 'data-label': columns[i] }, text)))),
    g.more ? element('tr', {}, element('td', { colspan: '4' }, `and ${g.more} more: ${g.title}`)) : '',
  ]).filter((r) => r !== '');
  if (rows.length === 0) return element('p', { class: 'note' }, 'No endpoints are known.');
  return element('div', {}, element('h3', {}, 'Endpoints'), element('table', { class: 'stacks' },
    element('thead', {}, element('tr', {}, ...columns.map((t) => element('th', { scope: 'col' }, t)))),
    element('tbody', {}, ...rows)));
}

// packets returns links that trace a packet to each of the addresses.
function packets(p) {
  const to = [...new Set(p.ways.flatMap((w) => w.to))];
  return element('div', {}, element('h3', {}, 'Trace a packet to'), element('div', { class: 'facts' },
    ...to.map((t) => element('a', { class: 'mono', href: '#/packet?to=' + encodeURIComponent(t) }, t))));
}
