// How figures are written, as nvsharectl does, and what lines and boxes drawings are made of.
'use strict';
const figures = (() => {
  const threeDigits = (n) => String(Number(n.toFixed(n < 9.995 ? 2 : n < 99.95 ? 1 : 0)));
  const bytes = (n) => {
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
    let at = 0;
    while (n >= 1023.5 && at < units.length - 1) { n /= 1024; ++at; }
    return at === 0 ? `${Math.round(n)} B` : `${threeDigits(n)} ${units[at]}`;
  };
  const two = (n) => String(n).padStart(2, '0');
  const seconds = (ns) => {
    if (ns <= 0) return '0 s';
    if (ns < 1e6) return '<1 ms';
    const s = ns / 1e9, whole = Math.round(s);
    if (s < 0.9995) return `${Math.round(s * 1e3)} ms`;
    if (s < 59.95) return `${threeDigits(s)} s`;
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
    if (whole < 86400) return `${Math.floor(whole / 3600)} h ${two(Math.floor(whole % 3600 / 60))} min`;
    return `${Math.floor(whole / 86400)} d ${two(Math.floor(whole % 86400 / 3600))} h`;
  };
  const percent = (n) => `${n.toFixed(n < 10 ? 1 : 0)} %`;

  // The points of a line that is level within each cell: two for each level.
  const stairs = (cells, levels, x, y) => {
    const points = [];
    let level = null;
    cells.forEach((cell, i) => {
      const here = y(levels[i]), goesOn = here === level && cells[i - 1].at === cell.at - 1;
      if (goesOn) points.pop(); else points.push(`${x(cell.at)},${here}`);
      points.push(`${x(cell.at + 1)},${here}`);
      level = here;
    });
    return points;
  };

  // A path of boxes; those that touch and are of one height are one.
  const boxes = () => {
    let done = '', open = null;
    const close = () => {
      if (open) done += `M${open.x.toFixed(1)} ${open.y}h${open.w.toFixed(1)}v${open.tall}h-${open.w.toFixed(1)}z`;
      open = null;
    };
    return {
      add: (x, w, from, height) => {
        const y = from.toFixed(1), tall = height.toFixed(1);
        if (open && open.y === y && open.tall === tall && Math.abs(open.x + open.w - x) < w / 2) { open.w = x + w - open.x; return; }
        close();
        open = {x, w, y, tall};
      },
      path: () => { close(); return done; },
    };
  };

  // What one of these costs, of the last few: the lower quartile. What came between on a busy machine makes one cost many times that.
  const typical = (costs) => [...costs].sort((a, b) => a - b)[(costs.length - 1) >> 2];

  return {bytes, seconds, percent, stairs, boxes, typical};
})();
