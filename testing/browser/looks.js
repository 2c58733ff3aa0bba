// Functions that say what is wrong with how a page looks.
'use strict';

window.looks = (() => {
  const isVisible = (e) => e.checkVisibility({ visibilityProperty: true, opacityProperty: true }) &&
    [...e.getClientRects()].some((r) => r.width > 1 && r.height > 1 && r.right > 0);
  const name = (e) => `${e.tagName.toLowerCase()}${e.id && '#' + e.id}.${e.getAttribute('class') ?? ''} "${e.textContent.trim().slice(0, 60)}"`;
  const all = (selector) => [...document.querySelectorAll(selector)].filter(isVisible);
  const hasText = (e) => [...e.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.data.trim());

  // shown returns the part of a rectangle that an element and the boxes around it leave visible.
  function shown(e, r) {
    let { left, top, right, bottom } = r;
    for (let p = e; p; p = p.parentElement) {
      const s = getComputedStyle(p);
      if (s.overflowX === 'visible' && s.overflowY === 'visible') continue;
      const b = p.getBoundingClientRect();
      [left, top, right, bottom] = [Math.max(left, b.left), Math.max(top, b.top), Math.min(right, b.right), Math.min(bottom, b.bottom)];
    }
    return { left, top, right, bottom };
  }

  function texts() {
    const found = [];
    for (const e of all('body *')) {
      if (!hasText(e) || e.closest('option, title, pre')) continue;
      const range = document.createRange();
      for (const n of e.childNodes) {
        if (n.nodeType !== Node.TEXT_NODE || !n.data.trim()) continue;
        range.selectNodeContents(n);
        for (const rect of range.getClientRects()) {
          const r = shown(e, rect);
          if (r.right - r.left > 1 && r.bottom - r.top > 1) found.push({ e, n, ...r });
        }
      }
    }
    return found;
  }

  // misplaced finds what sticks out of the window or of its box, and texts that overlap.
  function misplaced() {
    const found = [];
    if (document.documentElement.scrollWidth > innerWidth) found.push(`the page is ${document.documentElement.scrollWidth} wide`);
    for (const e of all('body *')) {
      const r = shown(e.parentElement, e.getBoundingClientRect());
      if (r.right > innerWidth + 1 || r.left < -1) found.push('out of the window: ' + name(e));
      const s = getComputedStyle(e);
      if (!e.closest('svg') && s.display !== 'inline' && e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1 &&
        !e.matches('pre, input, select, .scroll')) found.push(`wider than its box (${e.scrollWidth} > ${e.clientWidth}): ` + name(e));
    }
    for (const rect of all('svg g > rect')) {
      const box = rect.getBoundingClientRect();
      const margin = 4 * box.width / rect.getBBox().width;
      for (const t of rect.parentNode.querySelectorAll('text')) {
        const r = t.getBoundingClientRect();
        if (r.right > box.right - margin || r.left < box.left + margin || r.bottom > box.bottom) found.push('touches its box: ' + name(t));
      }
    }
    const list = texts().sort((a, b) => a.top - b.top);
    list.forEach((a, i) => {
      for (let j = i + 1; j < list.length && list[j].top < a.bottom - 3; j++) {
        const b = list[j];
        if (a.n !== b.n && Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2 && Math.min(a.bottom, b.bottom) - b.top > 3) {
          found.push(`overlap: ${name(a.e)} and ${name(b.e)}`);
        }
      }
    });
    return found.slice(0, 10);
  }

  const channels = (colour) => (colour.match(/[\d.]+/g) ?? [0, 0, 0, 0]).map(Number);

  function backgroundOf(e) {
    const layers = [];
    for (let p = e; p; p = p.parentElement) {
      const inPicture = p.closest('svg') && p.previousElementSibling?.tagName === 'rect';
      const [r, g, b, a = 1] = channels(inPicture ? getComputedStyle(p.parentNode.querySelector('rect')).fill : getComputedStyle(p).backgroundColor);
      layers.push([r, g, b, a]);
      if (a === 1) break;
    }
    return layers.reverse().reduce(([r, g, b], [r2, g2, b2, a]) => [r, g, b].map((c, i) => c * (1 - a) + [r2, g2, b2][i] * a), [255, 255, 255]);
  }

  function luminance(c) {
    const [r, g, b] = c.map((v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }

  // unreadable finds texts of too little contrast (WCAG AA), all or those under the mouse.
  function unreadable(hovered) {
    const found = new Set();
    for (const { e } of texts()) {
      if (e.closest(':disabled') || (hovered && !e.closest('a:hover, button:hover, summary:hover, label:hover'))) continue;
      const s = getComputedStyle(e);
      const [a, b] = [luminance(channels(e.closest('svg') ? s.fill : s.color).slice(0, 3)), luminance(backgroundOf(e))];
      const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      const size = parseFloat(s.fontSize);
      if (ratio < (size >= 24 || (size >= 18.66 && s.fontWeight >= 700) ? 3 : 4.5)) found.add(`contrast ${ratio.toFixed(2)}: ${name(e)}`);
    }
    return [...found].slice(0, 10);
  }

  // hoverable are the places of one button or link of each kind on the screen.
  function hoverable() {
    const kinds = new Map();
    for (const e of all('button:enabled, a, summary')) {
      const r = e.getClientRects()[0];
      const kind = e.tagName + e.className + e.getAttribute('aria-current') + e.getAttribute('aria-pressed') + (e.id && e.type === 'submit') + e.closest('[id]')?.id;
      if (r.top >= 0 && r.bottom <= innerHeight && r.left >= 0 && !kinds.has(kind)) kinds.set(kind, [r.left + r.width / 2, r.top + r.height / 2]);
    }
    return [...kinds.values()];
  }

  const settled = () => document.getAnimations().length === 0;
  const settle = () => Promise.all(document.getAnimations().map((a) => a.finished.catch(() => {})));

  async function accessible() {
    const { violations } = await axe.run(document, { resultTypes: ['violations'] });
    return violations.flatMap((v) => v.nodes.map((n) => `${v.id}: ${v.help}: ${n.html.slice(0, 200)}`)).slice(0, 10);
  }

  return { misplaced, unreadable, hoverable, settled, settle, axe: accessible };
})();
