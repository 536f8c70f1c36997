// The holders of each GPU before the page was opened, from what the scheduler remembers (/past.jsonl: lines of a trace). Nothing here touches
// the document.
'use strict';
const remembered = (() => {
  // As the scheduler counts time_running_ns, time_swapping_ns and time_waiting_ns.
  const kCounts = {running: 'ran', paused: 'ran', dropping: 'ran', unresponsive: 'ran', loading: 'moved', waiting: 'waited'};

  // From a client's entry to the next one: [{client, tenant, state, resident, begin, end}] in the scheduler's nanoseconds, and the GPU of each.
  const spansOf = (text) => {
    const gpuOf = new Map(), open = new Map(), spans = [];
    let first = null, last = 0;
    const close = (client, end) => {
      if (open.has(client)) spans.push({...open.get(client), end});
      open.delete(client);
    };
    for (const line of text.split('\n')) {
      if (!line) continue;
      const {names, seen, now, event, client} = JSON.parse(line);
      if (names) { gpuOf.set(names.client, names.gpu.slice(names.gpu.lastIndexOf(' ') + 1)); continue; }
      if (!now) continue;
      if (first === null) first = now;
      last = Math.max(last, now);
      if (seen) {
        close(seen.client, now);
        open.set(seen.client, {client: seen.client, tenant: seen.tenant, state: seen.state, resident: seen.memory.resident, begin: now});
      } else if (event === 'ClientLeft') close(client, now);
    }
    for (const client of [...open.keys()]) close(client, last);
    return {gpuOf, spans, first: first === null ? last : first, last};
  };

  // GPU -> the cells of that time, oldest first, without what other programs had: nobody remembers that. `now`: of the page's clock, when the
  // last line was written.
  const cellsOf = (text, now, cellMs) => {
    const {gpuOf, spans, first, last} = spansOf(text), timeOf = (at) => now - (last - at) / 1e6, from = timeOf(first), cells = new Map();
    for (const gpu of new Set(gpuOf.values())) {
      const list = [];
      for (let at = Math.floor(from / cellMs); at * cellMs < now; ++at) list.push({at, foreign: 0, tenants: new Map()});
      cells.set(gpu, list);
    }
    for (const span of spans) {
      const begin = timeOf(span.begin), end = timeOf(span.end);
      for (const cell of cells.get(gpuOf.get(span.client)) || []) {
        const cellEnd = Math.min((cell.at + 1) * cellMs, now), cellBegin = Math.max(cell.at * cellMs, from);
        const part = Math.min(end, cellEnd) - Math.max(begin, cellBegin);
        if (part <= 0) continue;
        const entry = cell.tenants.get(span.tenant) || {resident: 0, ran: 0, moved: 0, waited: 0, took: cellEnd - cellBegin};
        if (end >= cellEnd) entry.resident += span.resident;
        if (kCounts[span.state]) entry[kCounts[span.state]] += part;
        cell.tenants.set(span.tenant, entry);
      }
    }
    return cells;
  };

  return {cellsOf};
})();
