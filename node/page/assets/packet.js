// What happens to a packet: the question, the answer, and the packet's way, step by step.
'use strict';

let question = 0; // the number of the last one: answers to others come too late
let example = false; // whether the form has the example

const kinds = ['local pod', 'remote pod', 'pod', 'node', 'outside'];

const linkToTrace = (text) => '#/packet?flow=' + encodeURIComponent(text);

// ask puts the question of the form into the address, which asks it: so that it can be shared.
function ask(event) {
  event?.preventDefault();
  const from = `${$('from').value} ${$('source').value.trim()}`.trim();
  const text = `${from} -> ${$('to').value.trim()}/${$('protocol').value}`;
  const hash = linkToTrace(text);
  if (location.hash === hash) trace(text);
  else location.hash = hash;
}

// fillIn puts a question into the form. It returns false if the form has no place for it.
function fillIn(text) {
  const [from, to = ''] = text.split(/\s*->\s*(.*)/s);
  const kind = kinds.find((k) => from === k || from.startsWith(k + ' '));
  const i = to.lastIndexOf('/');
  const protocol = i < 0 ? 'TCP' : to.slice(i + 1).toUpperCase();
  if (!kind || !['TCP', 'UDP', 'SCTP'].includes(protocol)) return false;
  example = false;
  $('from').value = kind;
  showSource();
  $('source').value = from.slice(kind.length).trim();
  $('to').value = i < 0 ? to : to.slice(0, i);
  $('protocol').value = protocol;
  return true;
}

async function trace(text) {
  const number = ++question;
  journey.end();
  try {
    const answer = await get('api/flow', { q: text });
    if (number === question) showAnswer(answer, text);
  } catch (e) {
    if (number === question) $('answer').replaceChildren(element('p', { class: 'warning' }, e.message));
  }
}

// showQuestion shows the view for the part of the address behind the question mark.
function showQuestion(parameters) {
  const flow = parameters.get('flow');
  const to = parameters.get('to');
  if (flow !== null) {
    fillIn(flow);
    trace(flow);
  } else if (to) {
    if (example) fillIn('pod -> ');
    const i = to.lastIndexOf('/');
    $('to').value = to.slice(0, i);
    $('protocol').value = to.slice(i + 1);
    question++;
    journey.end();
    $('answer').replaceChildren();
    ($('from').value === 'node' ? $('to') : $('source')).focus();
  } else if ($('to').value === '') {
    showExample();
  }
}

// showExample asks about a packet to the service that was shown last, or to the one that the page opens on.
async function showExample() {
  const number = ++question;
  try {
    const { services } = chosen ? {} : await get('api/services', { limit: pageSize });
    if (services?.length === 0) return;
    const s = await get('api/service', chosen ?? richest(services));
    const text = s.pictures.length ? exampleOf(s.pictures[0]) : '';
    if (number !== question || $('to').value !== '' || !text || !fillIn(text)) return;
    example = true;
    trace(text);
  } catch { /* no example, then */ }
}

// exampleOf returns a question about a packet that reaches an endpoint, if one does: from outside, or from the node.
function exampleOf(picture) {
  const client = picture.family === 'IPv6' ? '2001:db8:ffff::7' : '198.51.100.7';
  const reach = picture.ways.filter((w) => w.groups.length > 0 && !w.kind.includes('source range'));
  const way = reach.find((w) => w.kind !== 'cluster IP' && w.from !== 'pods of this node' && w.from !== 'this node') ??
    reach[0] ?? picture.ways[0];
  if (!way) return '';
  const from = way.kind === 'cluster IP' || way.from === 'this node' ? 'node' : 'outside ' + client;
  return `${from} -> ${way.to[0]}`;
}

const verdicts = { deliver: 'is delivered', reject: 'is rejected', drop: 'is dropped',
  'not ours': 'is left alone: no service has it' };

function showAnswer(a, text) {
  const f = a.outcome.flow;
  $('answer').replaceChildren(
    element('p', { class: 'flowtext' }, `${f.from} ${f.source} → ${f.destination}/${f.protocol}`),
    element('p', { class: 'lead small' }, 'By the state that was last applied, ', time(a.appliedAt), '. ', element('a',
      { href: linkToTrace(text) }, 'Link to this trace')),
    ...(a.notes ?? []).map((n) => element('p', { class: 'note' }, n)),
    element('p', { class: 'verdict ' + a.outcome.verdict.replace(' ', '-') },
      'The packet ' + (verdicts[a.outcome.verdict] ?? a.outcome.verdict)),
    journey.draw(a.outcome, a.more?.[0] ?? 0), ...outcome(a.outcome, a.more?.[0]),
    ...(a.outcome.alsoAllowed ?? []).map((o, i) => element('div', { class: 'also' }, element('p', { class: 'lead' },
      'or, equally right:'),
      element('p', { class: 'verdict ' + o.verdict.replace(' ', '-') }, 'The packet ' + (verdicts[o.verdict] ??
        o.verdict)), ...outcome(o, a.more?.[i + 1]))));
  journey.begin();
}

function outcome(o, more) {
  const parts = [];
  if (o.endpoints) {
    parts.push(element('h3', {}, o.endpoints.length === 1 ? 'To' : 'To one of'), element('table', { class: 'stacks' },
      element('tbody', {},
      ...o.endpoints.map((d) => element('tr', {}, element('td', { class: 'mono', 'data-label': 'Address' },
        d.endpoint), element('td', { 'data-label': 'Pod' }, d.pod ?? ''),
        element('td', { 'data-label': 'Node' }, d.node ?? ''), element('td', { 'data-label': 'Source' }, d.sourceNAT
          ? 'masqueraded' : 'keeps the source address'))))));
    if (more) parts.push(element('p', { class: 'lead' }, `and ${more} more`));
  }
  parts.push(element('h3', {}, 'Because'), element('ol', { class: 'reasons' },
    ...o.reasons.map((r) => element('li', {}, r.text, r.rule ? rule(r.rule) : ''))));
  return parts;
}

function showSource() {
  const kind = $('from').value;
  const pod = kind === 'pod';
  $('source-label').hidden = kind === 'node';
  if (kind === 'node') $('source').value = '';
  $('source-label').firstElementChild.textContent = pod ? 'Address or namespace/name' : 'Address';
  $('source').placeholder = kind.endsWith('pod') ? '10.1.1.5' : '203.0.113.7';
}

// ---- the packet's way

const still = matchMedia('(prefers-reduced-motion: reduce)');

// journey moves the packet of an answer from stop to stop. Each stop has the reasons that belong to it.
const journey = {
  stops: [], at: 0, timer: 0, dot: null,

  // stopsOf returns the stops as {title, lines, kind, reasons}: reasons are those in the list, by their place.
  stopsOf(o, more) {
    const f = o.flow;
    const all = o.reasons.map((_, i) => i);
    const stops = [{ title: 'Sender', lines: [f.from, f.source], kind: '', reasons: [] },
      { title: 'Address', lines: [f.destination, f.protocol], kind: '', reasons: o.port ? all.slice(0, 1) : all }];
    if (o.port) {
      stops.push({ title: 'Policy', kind: 'policy', reasons: all.slice(1, 2),
        lines: [fullName(o.port.service), o.route?.endpoints === 'Local' ? 'endpoints on this node only'
          : 'any endpoint'] });
    }
    const ends = (o.endpoints ?? []).slice(0, 4).map((d) => d.endpoint);
    const rest = (o.endpoints?.length ?? 0) + more - ends.length;
    const source = (o.endpoints ?? []).every((d) => d.sourceNAT) ? 'source masqueraded'
      : o.endpoints.some((d) => d.sourceNAT) ? '' : 'source kept';
    stops.push({ title: o.verdict === 'deliver' ? (ends.length + rest === 1 ? 'Endpoint' : 'One of') : 'End',
      kind: o.verdict === 'deliver' ? 'used' : 'empty',
      lines: ends.length ? [...ends, rest > 0 ? `and ${rest} more` : '', source] : [verdicts[o.verdict] ?? o.verdict],
        reasons: o.port ? all.slice(2) : [] });
    return stops;
  },

  draw(o, more) {
    this.stops = this.stopsOf(o, more);
    this.dot = element('div', { class: 'dot', 'aria-hidden': 'true' });
    const step = (by) => () => { this.halt(); this.go(this.at + by); };
    return element('div', { class: 'journey' },
      element('ol', { class: 'stops' }, ...this.stops.map((s) => element('li', { class: 'stop ' + s.kind },
        element('small', {}, s.title), ...s.lines.filter(Boolean).map((l, i) => element(s.title === 'Policy' &&
          i === 0 ? 'b' : 'span', { class: s.title === 'Policy' ? undefined : 'mono' }, l)))), this.dot),
      element('div', { class: 'steps' }, button({ id: 'step-back' }, 'Back', step(-1)), button({ id: 'step-on' },
        'Step', step(1)),
        button({ id: 'play' }, 'Play', () => this.play()), element('p', { id: 'step', role: 'status' })));
  },

  // begin shows the whole way; the packet moves along it unless the reader prefers less motion.
  begin() {
    if (still.matches) this.go(this.stops.length - 1);
    else this.play();
  },

  play() {
    this.halt();
    this.go(0, true);
    const next = () => {
      if (this.at + 1 >= this.stops.length) return;
      this.go(this.at + 1);
      this.timer = setTimeout(next, still.matches ? 1500 : 1100);
    };
    this.timer = setTimeout(next, still.matches ? 1500 : 500);
  },

  // halt stops the packet where it is.
  halt() { clearTimeout(this.timer); },

  // end forgets the answer.
  end() { this.halt(); this.stops = []; },

  // go moves the packet to a stop.
  go(to, jump) {
    const stops = [...document.querySelectorAll('.stops > li')];
    if (!stops[to]) return;
    const from = stops[this.at] ?? stops[0];
    this.at = to;
    stops.forEach((s, i) => {
      s.classList.toggle('passed', i <= to);
      if (i === to) s.setAttribute('aria-current', 'step');
      else s.removeAttribute('aria-current');
    });
    const place = (s) => `translate(${s.offsetLeft + s.offsetWidth / 2 - 8}px, ${s.offsetTop - 9}px)`;
    this.dot.style.transform = place(stops[to]);
    if (!still.matches && !jump) this.dot.animate([{ transform: place(from) }, { transform: place(stops[to]) }],
      { duration: 600, easing: 'ease-in-out' });
    const now = this.stops[to].reasons;
    const reasons = [...document.querySelectorAll('#answer > .reasons > li')];
    reasons.forEach((r, i) => r.classList.toggle('now', now.includes(i)));
    $('step').textContent = `Step ${to + 1} of ${stops.length}: ` + (to === 0 ? 'the packet leaves its sender'
      : now.map((i) => reasons[i].firstChild.textContent).join('; ') || stops[to].textContent);
    $('step-back').disabled = to === 0;
    $('step-on').disabled = to === stops.length - 1;
  },
};

addEventListener('resize', () => journey.go(journey.at, true));
