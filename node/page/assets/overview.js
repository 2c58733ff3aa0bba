// The overview, the activity, and the header: what the proxy says about itself.
'use strict';

let events = [];
let syncs = [];
let lastState = null;

function showState(m) {
  $('node').textContent = m.node
    ? `node ${m.node.name || '?'}${m.node.zone ? ', ' + m.node.zone : ''} · ${plural(m.services, 'service')}`
    : 'waiting for the cluster';
  document.title = m.node ? `${m.node.name} · service proxy` : 'Service proxy';
  const last = events[0]?.number ?? 0;
  if (m.all && ((m.events[0] && m.events[0].number < last) || (m.syncs[0] &&
    m.syncs[0].number < syncs.at(-1)?.number))) {
    events = []; // another process
    syncs = [];
  }
  events = [...m.events.filter((e) => e.number > (events[0]?.number ?? 0)), ...events].slice(0, 200);
  syncs = [...syncs, ...m.syncs.filter((s) => s.number > (syncs.at(-1)?.number ?? 0))].slice(-60);
  showHealth(m);
  showOverview(m);
  showActivity(m);
}

const badge = (kind, ...text) => element('li', { class: kind }, ...text);

function sourceBadges(s) {
  if (!s) return [];
  return [
    s.disconnectedSince ? badge('bad', 'nothing from the source since ', time(s.disconnectedSince)) : '',
    s.restoredFrom ? badge('warn', 'state of a file, from ', time(s.restoredFrom)) : '',
    s.wentBack ? badge('warn', 'took a state that may be older ', time(s.wentBack)) : '',
  ].filter(Boolean);
}

function showHealth(m) {
  const chips = m.families.map((f) => badge(f.healthy ? '' : 'bad', f.family + ' applied ', time(f.lastApplied)));
  if (chips.length === 0 && m.sync) chips.push(badge(m.sync.failed ? 'bad' : '', 'synced ', time(m.sync.at)));
  if (m.phase && m.phase !== 'serving') chips.push(badge('bad', m.phase));
  if (m.sync?.failed) chips.push(badge('bad', 'last Sync failed'));
  if (m.failing > 0) chips.push(badge('bad', plural(m.failing, 'service') + ' failing'));
  replace($('health'), ...sourceBadges(m.source), ...chips);
}

// ---- overview

function tile(label, value, detail, kind = '') {
  return element('div', { class: 'tile ' + kind }, element('dt', {}, label), element('dd', { class: 'value' }, value),
    element('dd', { class: 'detail' }, ...detail));
}

function byFamily(totals, of) {
  return ['IPv4', 'IPv6'].filter((f) => totals[f]?.services > 0).map((f) => `${f} ${totals[f][of]}`).join(' · ');
}

function showTiles(m) {
  const p = m.problems;
  const kinds = [[p.failing, 'refused'], [p.unserved, 'not served in part'], [p.empty, 'without endpoints']];
  const arrived = m.families.map((f) => f.lastQueued).filter(Boolean).sort().at(-1);
  const gone = m.source?.disconnectedSince;
  replace($('tiles'),
    tile('Services', element('a', { href: '#/services' }, String(m.services)), [byFamily(m.totals, 'services')]),
    tile('Endpoints', String(m.endpoints), [byFamily(m.totals, 'endpoints')]),
    tile('Services with problems', element('a', { href: '#/services?problems' }, String(p.total)),
      [p.total === 0 ? 'none' : kinds.filter(([n]) => n > 0).map(([n, what]) => `${n} ${what}`).join(' · ')],
        p.total > 0 ? 'bad' : 'good'),
    tile('Last Sync', m.sync ? (m.sync.failed ? 'failed' : took(syncs.at(-1)?.micros ?? 0)) : 'none yet',
      m.sync ? [time(m.sync.at)] : [], m.sync?.failed ? 'bad' : ''),
    tile('Source', gone ? 'silent' : m.source?.restoredFrom ? 'a file' : !m.phase ? 'unknown' : m.phase !== 'serving'
      ? m.phase : m.node ? 'connected' : 'waiting',
      gone ? ['since ', time(gone)] : m.source?.restoredFrom ? ['from ', time(m.source.restoredFrom)] : !m.phase
        ? ['this proxy does not tell'] : arrived ? ['last change ', time(arrived)] : [],
      gone ? 'bad' : m.source?.restoredFrom ? 'warn' : ''));
}

function showOverview(m) {
  lastState = m;
  showTiles(m);
  const p = m.problems;
  const named = p.first.map((one) => element('li', {}, element('a', { href: linkTo(one.service) },
    fullName(one.service)),
    element('span', { class: 'why ' + one.status }, one.text)));
  const rest = p.total - p.first.length;
  replace($('problems-now'), m.sync?.failed ? element('p', { class: 'warning' }, m.sync.error) : '',
    named.length ? element('ul', { class: 'lines' }, ...named) : element('p', { class: 'lead' }, m.sync
      ? 'Every service has what it asks for.' : 'Nothing is known yet.'),
    rest > 0 ? element('p', { class: 'lead' }, element('a', { href: '#/services?problems' },
      `and ${plural(rest, 'more service')}`)) : '');

  replace($('syncs'), ...sparkline());
  replace($('busiest'), m.busiest.length ? element('ol', { class: 'lines' }, ...m.busiest.map((b) => element('li', {},
    element('a', { href: linkTo(b.service) }, fullName(b.service)), element('span', { class: 'why' }, plural(b.changes,
      'change')))))
    : element('p', { class: 'lead' }, 'No service has changed.'),
  m.busySince ? element('p', { class: 'lead small' }, 'counted since ', time(m.busySince)) : '');

  replace($('latest'), ...(events.length ? [element('ul', { class: 'lines' }, ...events.slice(0, 6).map(eventLine))]
    : [element('p', { class: 'lead' }, 'Nothing has changed.')]));

  const term = (name, value) => [element('dt', {}, name), element('dd', {}, value)];
  const families = m.families.map((f) => element('div', {}, element('h3', {}, f.family), element('dl', {},
    ...term('last change', time(f.lastQueued)), ...term('last applied', time(f.lastApplied)),
    ...(f.oldestPending ? term('waiting since', time(f.oldestPending)) : []), ...term('healthy', f.healthy ? 'yes'
      : 'no'))));
  replace($('families'), ...(families.length ? families : [element('p', { class: 'lead' },
    'This proxy does not report them.')]));
}

// sparkline draws how long the last Syncs took: the height is the time, on a logarithmic scale.
function sparkline() {
  if (syncs.length === 0) return [element('p', { class: 'lead' }, 'There has been none yet.')];
  const height = 56;
  const scale = (us) => 4 + Math.log10(1 + us) / 7.5 * (height - 4);
  const bars = syncs.map((s, i) => {
    const h = Math.min(height, scale(s.micros));
    return drawing('rect', { x: (60 - syncs.length + i) * 10 + 1, y: height - h, width: 8, height: h, class: s.failed
      ? 'failed' : 'fine' },
      drawing('title', {}, `${took(s.micros)}, ${plural(s.services, 'service')} changed${s.failed ? ', failed' : ''}`));
  });
  const times = syncs.map((s) => s.micros).sort((a, b) => a - b);
  const failed = syncs.filter((s) => s.failed).length;
  const words = (syncs.length === 1 ? `one Sync, ${took(times[0])}`
    : `${syncs.length} Syncs of ${took(times[0])} to ${took(times.at(-1))}, ` +
      `half of them up to ${took(times[(times.length - 1) >> 1])}`) +
    (failed ? `; ${failed} failed` : '');
  return [drawing('svg', { viewBox: `0 0 600 ${height}`, class: 'spark', role: 'img', preserveAspectRatio: 'none',
    'aria-label': 'How long the last Syncs took: ' + words }, ...bars),
    element('p', { class: 'lead small' }, words + '. The latest is on the right; the height is logarithmic.')];
}

// ---- activity

function showActivity(m) {
  replace($('last-error'), m.sync?.error ? element('p', { class: 'warning' }, m.sync.error) : '');
  const repairs = m.repairs?.last ?? [];
  replace($('repairs'), ...(repairs.length === 0
    ? [element('p', {}, m.repairs ? 'Nothing had to be repaired.' : 'This backend does not report repairs.')]
    : [element('p', {}, `${m.repairs.total} in total`), element('ul', {}, ...repairs.map((r) =>
      element('li', { class: r.error ? 'error' : '' }, time(r.at), element('span', {}, r.family + (r.error
        ? ' failed: ' + r.error : ' repaired')))))]));
  replace($('events'), ...events.map(eventLine));
}

const eventLine = (e) => element('li', { class: e.kind }, time(e.at), element('span', {},
  e.service ? element('a', { href: linkTo(e.service) }, fullName(e.service)) : '', (e.service ? ' ' : '') + e.text));
