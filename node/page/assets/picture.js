// The paths of a service's traffic: as a picture, and as a list where there is no room for one.
'use strict';

const columns = { from: [0, 156], to: [180, 226], policy: [430, 250], group: [716, 284] }; // left, width
const maxDrawn = 6; // endpoints of a group

// short truncates a text to a number of characters.
const short = (text, n) => (text.length > n ? text.slice(0, n - 1) + '…' : text);

// box draws a box whose lines are [class, text]; it returns its height.
function box(to, [x, width], y, kind, lines, characters) {
  const height = lines.length * 18 + 16;
  const g = drawing('g', {}, drawing('rect', { x: x + 0.75, y: y + 0.75, width: width - 1.5, height: height - 1.5,
    rx: 8, class: kind }));
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
    ...[...new Set(p.ways.map((w) => w.empty).filter(Boolean))].map((e) => ({ key: e, kind: 'empty', lines: [['bad',
      e]] })),
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
    const place = (column, kind, lines, characters) => box(boxes, column, middle - (lines.length * 18 + 16) / 2, kind,
      lines, characters);
    place(columns.from, 'sender', [['strong', w.from]], 18);
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
    (w.empty || w.groups.map((g) => p.groups[g])
      .map((g) => `${g.endpoints.length + (g.more ?? 0)} ${g.title}`).join(', ')));
  return drawing('svg', { viewBox: `0 0 1000 ${top + total + 4}`, role: 'img',
    'aria-label': 'The paths of the traffic. ' + words.join('. ') },
    paths, boxes);
}

// wayList says the same as the picture, for narrow screens: one path below the other.
function wayList(p) {
  return element('ol', { class: 'ways' }, ...p.ways.map((w) => element('li', {},
    element('div', { class: 'stop' }, element('b', {}, w.from)),
    element('div', { class: 'stop' }, element('small', {}, w.kind), ...w.to.map((t) => element('span',
      { class: 'mono' }, t)),
      w.moreTo ? element('small', {}, `and ${w.moreTo} more`) : ''),
    element('div', { class: 'stop policy' }, element('b', {}, w.policy), element('small', {}, w.source)),
    element('div', { class: 'stop ' + (w.empty ? 'empty' : 'used') }, ...(w.empty ? [element('b', {}, w.empty)]
      : w.groups.flatMap((i) => [element('b', {}, p.groups[i].title), element('small', {},
        plural(p.groups[i].endpoints.length + (p.groups[i].more ?? 0), 'endpoint'))]))))));
}
