// Messages from the proxy, navigation and keys.
'use strict';

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

const views = { '': 'overview', services: 'services', service: 'services', packet: 'packet', activity: 'activity' };

function navigate(event) {
  const [path, query] = location.hash.slice(1).split(/\?(.*)/s);
  const [, first = '', ...names] = path.split('/');
  const view = views[first] ?? 'overview';
  const before = ['overview', 'services', 'packet', 'activity'].find((id) => !$(id).hidden);
  for (const id of Object.values(views)) $(id).hidden = id !== view;
  for (const a of document.querySelectorAll('nav a')) {
    if (a.dataset.view === view) a.setAttribute('aria-current', 'page');
    else a.removeAttribute('aria-current');
  }
  const parameters = new URLSearchParams(query);
  if (view !== 'packet') journey.halt();
  if (view === 'packet') return showQuestion(parameters);
  if (view !== 'services') return;
  if (parameters.has('problems') !== $('problems').checked && (parameters.has('problems') || first === 'services' &&
    before !== 'services')) {
    $('problems').checked = parameters.has('problems');
    list.offset = 0;
    loadList();
  }
  let next = null;
  try {
    if (first === 'service') next = { namespace: decodeURIComponent(names[0] ?? ''),
      name: decodeURIComponent(names.slice(1).join('/')) };
  } catch { /* an invalid link selects nothing */ }
  const same = next && isChosen(next);
  if (next && !chosen) list.top = scrollY;
  const left = !next && chosen;
  chosen = next;
  $('services').classList.toggle('chosen', Boolean(chosen));
  markChosen();
  if (left && before === 'services') scrollTo(0, list.top);
  if (!same) {
    tab = 0;
    loadService(Boolean(event));
  }
}

// keys: / focuses the search, the arrows and PageUp and PageDown move through the list, Escape leads back to it.
document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $('rule').open) return;
  const inField = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === '/' && !inField) {
    if (!location.hash.startsWith('#/service')) location.hash = '#/services';
    event.preventDefault();
    navigate();
    $('q').focus();
  }
  if (event.key === 'Escape' && chosen && $('service').contains(event.target)) toList();
  if (['ArrowDown', 'ArrowUp', 'PageDown', 'PageUp'].includes(event.key)) moveInList(event);
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
$('previous').addEventListener('click', () => { list.offset = Math.max(0, list.offset - pageSize); loadList(); });
$('next').addEventListener('click', () => { list.offset += pageSize; loadList(); });
$('flow').addEventListener('submit', ask);
$('from').addEventListener('change', showSource);
$('rule-close').addEventListener('click', () => $('rule').close());
addEventListener('hashchange', navigate);
document.querySelector('.skip').addEventListener('click', (event) => {
  event.preventDefault(); // the fragment of the address says which view is shown
  $('main').focus();
});

showSource();
navigate();
loadList();
follow();
