// The traffic that the dataplane counts, while somebody looks.
'use strict';

// traffic is the last answer, null before the first one.
const traffic = { last: null, timer: 0, every: 5000 };

const compact = new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 3 });

// perSecond is a number of things per second in words.
const perSecond = (n, what = '') => `${n < 10 ? Math.round(n * 10) / 10 : n < 9999.5 ? Math.round(n) : compact.format(n)}${what}/s`;

function bytesPerSecond(n) {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let i = 0;
  for (; n >= 1000 && i < units.length - 1; i++) n /= 1000;
  return `${n < 10 && i > 0 ? n.toFixed(1) : Math.round(n)} ${units[i]}/s`;
}

const rateText = (r) => perSecond(r.connections, ' connections') + (r.bytes ? ', ' + bytesPerSecond(r.bytes) : '');

async function loadTraffic() {
  clearTimeout(traffic.timer);
  if (!document.hidden) {
    const name = chosen;
    try {
      traffic.last = await get('api/traffic', name ?? {});
      if (name !== chosen) traffic.last.service = undefined;
      showTraffic();
    } catch { /* the proxy is away, which the page says elsewhere, or busy */ }
  }
  // A backend that does not count may be another one after a restart of the proxy.
  traffic.timer = setTimeout(loadTraffic, traffic.last?.counted === false ? 12 * traffic.every : traffic.every);
}

// trafficTile is the overview's tile, none if nothing is counted.
function trafficTile() {
  const t = traffic.last;
  if (!t?.counted) return [];
  if (t.error) return [tile('New connections', '?', ['cannot be read'], 'bad')];
  if (!t.seconds) return [tile('New connections', '…', ['counting'])];
  return [tile('New connections', perSecond(t.total.connections), [t.total.bytes ? bytesPerSecond(t.total.bytes) : `in ${Math.round(t.seconds)} s`])];
}

function showTraffic() {
  const t = traffic.last;
  $('traffic-panel').hidden = !t.counted;
  replace($('traffic'), t.error ? element('p', { class: 'warning' }, t.error) : '',
    t.busiest.length ? element('ol', { class: 'lines' }, ...t.busiest.map((b) => element('li', {},
      element('a', { href: linkTo(b.service) }, fullName(b.service)), element('span', { class: 'why' }, rateText(b)))))
      : element('p', { class: 'lead' }, t.seconds ? 'No service gets new connections.' : 'Counting …'));
  if (lastState) showTiles(lastState);
  if (t.seconds && !$('services').hidden) refreshList();
  if ($('rate')) $('rate').textContent = t.service ? rateText(t.service) : '…';
}
