// Texts and tables that change all the time and cost the browser little: a text that changes keeps its node, and nothing is written that
// is there already. Texts are remembered, because the document answers slowly.
'use strict';
const tables = (() => {
  const written = new WeakMap();  // element -> its text node
  const setText = (node, text) => {
    const there = written.get(node);
    if (there) {
      if (there.data !== text) there.data = text;
      return;
    }
    const first = document.createTextNode(text);
    node.replaceChildren(first);
    written.set(node, first);
  };

  const newRow = (table, wanted) => {
    const row = document.createElement('tr');
    const texts = [...table.tHead.rows[0].cells].map((column, i) => {
      const cell = document.createElement(i === 0 ? 'th' : 'td');
      if (i === 0) cell.scope = 'row';
      if (column.classList.contains('number')) cell.className = 'number';
      row.append(cell);
      if (i > 0 || !wanted.mark) return cell;
      const swatch = document.createElement('span'), name = document.createElement('span');
      swatch.className = `swatch ${wanted.mark.colour}`;
      swatch.textContent = wanted.mark.letter;
      cell.append(swatch, name);
      return name;
    });
    return {row, nodes: texts, texts: []};
  };

  // Where columns are as wide as their longest text each text that changes has the browser go over all of the table. So they are set to what
  // they were found to need, until a longer text comes.
  const kCellEdges = 24, kSwatch = 40, kLetter = 9;  // pixels; of letters most are narrower
  const filled = new WeakMap();   // table -> its rows: Map(key -> {row, nodes, texts}) in their order
  const longest = new WeakMap();  // table whose columns are set -> the longest texts that they have room for
  const freeColumns = (table) => {
    if (!longest.delete(table)) return;
    table.classList.remove('set');
    for (const column of table.tHead.rows[0].cells) column.style.width = '';
  };
  const setColumns = (table) => {
    if (longest.has(table)) return;
    const columns = [...table.tHead.rows[0].cells], rows = [...(filled.get(table) || new Map()).values()];
    if (!rows.length || !table.offsetWidth) return;
    const widths = columns.map((column) => column.getBoundingClientRect().width);
    columns.forEach((column, i) => { column.style.width = `${widths[i]}px`; });
    table.classList.add('set');
    longest.set(table, widths.map((width, i) => Math.max(
      Math.floor((width - kCellEdges - (i === 0 ? kSwatch : 0)) / kLetter), ...rows.map(({texts}) => texts[i].length))));
  };

  // rows: [{key, mark?, cells: () => [text]}]; the first cell is the row's header. Rows that stay keep their elements, and so the reader's
  // place. `changed`: a set of keys, of which alone cells are asked for, besides those that are new here; null: of all.
  const fill = (table, rows, changed) => {
    const body = table.tBodies[0], old = filled.get(table) || new Map(), keys = new Set(rows.map((wanted) => wanted.key));
    for (const [key, {row}] of old) if (!keys.has(key)) row.remove();
    const before = [...old.keys()].filter((key) => keys.has(key)), now = new Map();
    let moves = false;  // from the first row on that is new, or elsewhere
    rows.forEach((wanted, index) => {
      const was = old.get(wanted.key), here = was || newRow(table, wanted);
      now.set(wanted.key, here);
      moves ||= before[index] !== wanted.key;
      if (moves) body.append(here.row);
      if (was && changed && !changed.has(wanted.key)) return;
      wanted.cells().forEach((text, i) => {
        if (here.texts[i] === text) return;
        here.texts[i] = text;
        if (longest.has(table) && text.length > longest.get(table)[i]) freeColumns(table);
        setText(here.nodes[i], text);
      });
    });
    filled.set(table, now);
  };

  // facts: [[name, value]]
  const fillFacts = (list, facts) => {
    while (list.children.length < facts.length) {
      const pair = document.createElement('div');
      pair.append(document.createElement('dt'), document.createElement('dd'));
      list.append(pair);
    }
    while (list.children.length > facts.length) list.lastChild.remove();
    facts.forEach(([name, value], i) => {
      const pair = list.children[i];
      setText(pair.firstChild, name);
      setText(pair.lastChild, value);
    });
  };

  return {setText, fill, fillFacts, freeColumns, setColumns};
})();
