// The search of the matrix. All else works without it.
'use strict';
{
  const search = document.getElementById('q');
  const rows = [...document.querySelectorAll('tr.case')];
  const update = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.firstElementChild.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      if (!row.hidden && getComputedStyle(row).display !== 'none') shown++;
    }
    const count = document.getElementById('count');
    count.textContent = `${shown} ${count.dataset.noun.toLowerCase()}${shown === 1 ? '' : 's'}`;
  };
  search.hidden = false;
  search.addEventListener('input', update);
  document.querySelector('.filters').addEventListener('change', update);
  document.querySelector('.filters').addEventListener('submit', (e) => e.preventDefault());
  document.addEventListener('keydown', (e) => {
    if (e.key !== '/' || e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(e.target.tagName) && e.target.type === 'search') return;
    e.preventDefault();
    search.focus();
  });
  update();
}
