// Follows the scheduler: /status.jsonl goes on, with a line of all (what `nvsharectl status --json` prints, in brief) every three to six
// seconds, of which five minutes are kept, and between with what is new on the GPUs that are on the screen, once something is. These are
// drawn at once, of the others one with each whole report, so that a node with many costs little. Names come from programs that nobody
// trusts: they become text of the document, never markup.
'use strict';
(() => {
  const kAgainMs = 3000, kHiddenMs = 5000, kPatienceMs = 10000;
  // Between two looks, at least. News are drawn at once while changes are few; where they never end, all of the page takes such a share of a
  // processor, in the long run: what this thread does for a picture, and as much again that the browser's others do. Counted is one of the
  // shortest of the last ones: where others have the processor, most take far longer than they use.
  const kApartMs = 30, kShare = 0.015, kSavedMs = 80, kAllThreads = 2, kRecent = 5, kCostMaxMs = 40;
  // A whole report that tells no news of the GPUs on the screen, only amounts and times, is drawn with the next news, after this at the latest:
  // what a picture costs the browser depends little on how much of it is new.
  const kQuietMs = 1500;
  const kCellMs = 3000, kCells = 100, kCellsShown = 20;  // what is kept: a cell for each report; and the least of it that is drawn
  const kColours = 8;
  const kSvg = 'http://www.w3.org/2000/svg';
  const byId = (id) => document.getElementById(id);
  const {bytes, seconds, percent, stairs, boxes, typical} = figures;
  const {setText, fill, fillFacts, freeColumns, setColumns} = tables;

  // ---- the past ----
  const letters = new Map();  // tenant -> {letter, colour}
  const markOf = (tenant) => {
    if (!letters.has(tenant)) {
      const taken = new Set([...letters.values()].map((mark) => mark.number));
      let number = 0;
      while (taken.has(number)) ++number;
      const letter = number < 26 ? String.fromCharCode(65 + number) : String(number + 1);
      letters.set(tenant, {number, letter, colour: `t${number % kColours}`});
    }
    return letters.get(tenant);
  };
  const past = new Map();  // GPU -> {cells: [{at, foreign, tenants: Map(tenant -> {resident, ran, moved, waited, time})}], rates}
  let before = null;       // the report before, and when it came
  let epoch = null;
  let latest = null;       // the report as it is shown, what came since it was asked for put in

  const sumsOf = (report, gpu) => {  // tenant -> its clients on that GPU, summed up
    const sums = new Map();
    for (const client of report.clients) {
      if (client.gpu !== gpu.uuid) continue;
      if (!sums.has(client.tenant)) sums.set(client.tenant, {resident: 0, swapped: 0, ran: 0, moved: 0, waited: 0, clients: []});
      const sum = sums.get(client.tenant);
      sum.resident += client.resident;
      sum.swapped += client.swapped;
      sum.clients.push(client);
      const was = before && before.clients.get(client.id);
      if (!was) continue;
      sum.ran += Math.max(client.time_running_ns - was.time_running_ns, 0) / 1e6;
      sum.moved += Math.max(client.time_swapping_ns - was.time_swapping_ns, 0) / 1e6;
      sum.waited += Math.max(client.time_waiting_ns - was.time_waiting_ns, 0) / 1e6;
    }
    return sums;
  };

  // A cell between two reports that are further apart was as the later one says, which tells of that time, too.
  const fillGap = (cells) => {
    const [earlier, later] = cells.slice(-2);
    if (!later || later.at !== earlier.at + 2) return;
    const tenants = new Map([...later.tenants].map(([tenant, entry]) => [tenant, {...entry}]));
    cells.splice(-1, 0, {at: later.at - 1, foreign: later.foreign, tenants});
  };

  // What the scheduler remembers of the time before the first report, before the cells that were made since.
  const putBefore = (history, older) => {
    const [first] = history.cells;
    const before = older.filter((cell) => !first || cell.at < first.at), same = first && older.find((cell) => cell.at === first.at);
    for (const cell of before) cell.foreign = first ? first.foreign : 0;
    for (const [tenant, entry] of same ? same.tenants : []) {
      const now = first.tenants.get(tenant);
      if (now) for (const name of ['ran', 'moved', 'waited', 'took']) now[name] += entry[name];
    }
    history.cells.unshift(...before);
  };

  const remember = (report, now) => {
    const uptime = report.uptime_ns / 1e6;  // of the report, which may have been made for another viewer
    if (epoch !== report.epoch) {
      past.clear(); letters.clear(); before = null; epoch = report.epoch;
      askForPast();
    }
    const known = new Set(report.tenants.map((tenant) => tenant.id));
    for (const id of letters.keys()) if (!known.has(id)) letters.delete(id);
    for (const gpu of report.gpus) {
      if (!past.has(gpu.uuid)) past.set(gpu.uuid, {cells: [], rates: null});
      const history = past.get(gpu.uuid), sums = sumsOf(report, gpu), at = Math.floor(now / kCellMs);
      let cell = history.cells.at(-1);
      if (!cell || cell.at !== at) {
        cell = {at, tenants: new Map()};
        history.cells.push(cell);
      }
      while (history.cells.length && history.cells[0].at <= at - kCells) history.cells.shift();
      cell.foreign = gpu.foreign + gpu.overhead + gpu.departed;
      const took = before ? uptime - before.uptime : 0;
      for (const [tenant, sum] of sums) {
        const entry = cell.tenants.get(tenant) || {resident: 0, ran: 0, moved: 0, waited: 0, took: 0};
        entry.resident = sum.resident;
        entry.ran += sum.ran; entry.moved += sum.moved; entry.waited += sum.waited; entry.took += took;
        cell.tenants.set(tenant, entry);
        markOf(tenant);
      }
      for (const [tenant, entry] of cell.tenants) if (!sums.has(tenant)) entry.resident = 0;
      fillGap(history.cells);
      const was = before && before.usage.get(gpu.uuid);
      history.rates = was && took > 0
        ? {out: (gpu.usage.swapped_out - was.swapped_out) / took * 1e3, in: (gpu.usage.swapped_in - was.swapped_in) / took * 1e3} : null;
    }
    before = {uptime, clients: new Map(report.clients.map((c) => [c.id, c])), usage: new Map(report.gpus.map((g) => [g.uuid, g.usage]))};
  };

  // ---- drawing ----
  const setAttribute = (node, name, value) => { if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value); };
  // A drawing is a list of [element's name, attributes, text]. Elements stay where they are, and change as the list does: a new one costs the
  // browser more, and a text that stays is not laid out again.
  const drawn = new WeakMap();  // svg -> [{node, name, attributes, text}]
  const draw = (svg, wanted) => {
    const before = drawn.get(svg) || [];
    const now = wanted.map(([name, attributes, text = ''], i) => {
      const was = before[i] && before[i].name === name ? before[i] : null, node = was ? was.node : document.createElementNS(kSvg, name);
      for (const [key, value] of Object.entries(attributes)) if (!was || was.attributes[key] !== value) node.setAttribute(key, value);
      for (const key of was ? Object.keys(was.attributes) : []) if (!(key in attributes)) node.removeAttribute(key);
      if (text !== (was ? was.text : '')) node.textContent = text;
      if (!was && before[i]) before[i].node.replaceWith(node);
      else if (!was) svg.append(node);
      return {node, name, attributes, text};
    });
    for (const {node} of before.slice(now.length)) node.remove();
    drawn.set(svg, now);
  };
  const widths = new WeakMap();  // of drawings, told when they change: to ask would lay out the page in the midst of its changes
  const sizes = new ResizeObserver((entries) => {
    for (const {target, contentRect} of entries) {
      if (!contentRect.width || widths.get(target) === contentRect.width) continue;
      widths.set(target, contentRect.width);
      const panel = target.closest('.gpu');
      panel.querySelectorAll('table').forEach(freeColumns);
      showAgain(panel.dataset.gpu);
    }
  });
  const frame = (svg, height) => {
    const width = Math.max(Math.floor(widths.get(svg) || 0), 200);
    setAttribute(svg, 'viewBox', `0 0 ${width} ${height}`);
    setAttribute(svg, 'height', height);
    return width;
  };
  const kLetterRoom = 26;
  // So many cells are drawn: all that there are, in whole minutes.
  const spanOf = (view, last) => {
    const age = view.history.cells.length ? last - view.history.cells[0].at + 1 : 1;
    return Math.min(Math.ceil(age / kCellsShown) * kCellsShown, kCells);
  };
  const timeAxis = (right, y, span) => [
    ['text', {x: 4, y}, `${span * kCellMs / 60000} min ago`], ['text', {x: right, y, 'text-anchor': 'end'}, 'now']];

  const drawMemory = (svg, view, order, now) => {
    const height = 180, top = 6, bottom = height - 18, width = frame(svg, height), right = width - kLetterRoom;
    const last = Math.floor(now / kCellMs), {gpu, history} = view, span = spanOf(view, last);
    const x = (at) => Math.max(right * (at - last - 1 + span) / span, 0).toFixed(1);
    const y = (value) => (bottom - (bottom - top) * Math.min(value / Math.max(gpu.total, 1), 1)).toFixed(1);
    const nodes = [];
    const base = history.cells.map(() => 0);
    const area = (valueOf, classes, letter) => {
      const lower = stairs(history.cells, base, x, y);
      let latest = 0;
      history.cells.forEach((cell, i) => {
        latest = valueOf(cell);
        base[i] += latest;
      });
      const upper = stairs(history.cells, base, x, y);
      if (!upper.length || (upper.join() === lower.join())) return;
      nodes.push(['polygon', {class: classes, points: [...upper, ...lower.reverse()].join(' ')}]);
      const tall = (bottom - top) * latest / Math.max(gpu.total, 1);
      if (letter && tall > 11) {
        const middle = Number(y(base.at(-1))) + tall / 2 + 4;
        nodes.push(['text', {class: 'letter', x: right + 6, y: middle}, letter]);
      }
    };
    area((cell) => cell.foreign, 'others');
    for (const tenant of order) {
      const mark = markOf(tenant);
      area((cell) => (cell.tenants.get(tenant) || {resident: 0}).resident, `${mark.colour} edge`, mark.letter);
    }
    const safe = y(gpu.safe_limit);
    nodes.push(['path', {class: 'safe', d: `M0 ${safe}H${right}`}]);
    nodes.push(['path', {class: 'grid', d: `M0 ${bottom}H${right}V${top}`}]);
    nodes.push(['text', {x: 4, y: top + 10}, bytes(gpu.total)]);
    nodes.push(...timeAxis(right, height - 5, span));
    draw(svg, nodes);
  };

  const drawTurns = (svg, view, order, now) => {
    const lane = 20, height = Math.max(order.length, 1) * lane + 24, width = frame(svg, height), right = width - kLetterRoom;
    const last = Math.floor(now / kCellMs), span = spanOf(view, last), step = right / span;
    const nodes = [];
    order.forEach((tenant, row) => {
      const mark = markOf(tenant), bottom = row * lane + lane - 2, tall = lane - 5;
      const runs = boxes(), moves = boxes(), waits = boxes();
      for (const cell of view.history.cells) {
        const entry = cell.tenants.get(tenant);
        if (!entry || !(entry.took > 0)) continue;
        const x = right + (cell.at - last - 1) * step, box = (to, from, part) => to.add(x, step, bottom - from * tall, -part * tall);
        const ran = Math.min(entry.ran / entry.took, 1), moved = Math.min(entry.moved / entry.took, 1 - ran);
        if (entry.waited / entry.took > 0.05) waits.add(x, step, bottom, 2);
        if (ran > 0.01) box(runs, 0, ran);
        if (moved > 0.01) box(moves, ran, moved * 0.5);
      }
      nodes.push(['path', {class: 'grid', d: `M0 ${row * lane + lane}.5H${right}`}]);
      if (waits.path()) nodes.push(['path', {class: 'wait', d: waits.path()}]);
      if (moves.path()) nodes.push(['path', {class: `${mark.colour} moving`, d: moves.path()}]);
      if (runs.path()) nodes.push(['path', {class: mark.colour, d: runs.path()}]);
      nodes.push(['text', {class: 'letter', x: right + 6, y: bottom - 2}, mark.letter]);
    });
    nodes.push(...timeAxis(right, height - 6, span));
    draw(svg, nodes);
  };

  const doings = (clients, paused) => {
    const counts = new Map();
    for (const client of clients) counts.set(client.state, (counts.get(client.state) || 0) + 1);
    const text = [...counts].map(([state, count]) => `${count} ${state}`).join(', ');
    return paused ? `${text}; paused by the administrator` : text;
  };
  const kNamed = 3;  // a line of all that run together would be as long as the table
  const namesOf = (names) => (names.length > kNamed + 1 ? `${names.slice(0, kNamed).join(', ')} and ${names.length - kNamed} more` : names.join(', ') || 'nobody');

  const panels = new Map();  // GPU -> its section, and the parts of it: the document takes long to find them
  const partsOf = (panel) => {
    const find = (selector) => panel.querySelector(selector), regions = panel.querySelectorAll('.scroll');
    return {panel, title: find('h2'), uuid: find('.uuid'), facts: find('.facts'), tenants: find('.tenants'), details: find('details'),
            summary: find('summary'), programs: find('.programs'), memory: find('.memory svg'), turns: find('.turns svg'), regions};
  };
  const onScreen = new Set();  // GPUs
  const kProgramsOpen = 24;  // so many are listed at once; more when somebody opens the list
  const watcher = new IntersectionObserver((entries) => {
    let came = false;
    for (const {target, isIntersecting} of entries) {
      const uuid = target.dataset.gpu, comes = isIntersecting && !onScreen.has(uuid);
      if (isIntersecting) onScreen.add(uuid); else onScreen.delete(uuid);
      came ||= comes;
      if (comes) showAgain(uuid);
    }
    askAnew(came ? kApartMs : kAgainMs);
  });
  const panelOf = (gpu, clients) => {
    if (!panels.has(gpu.uuid)) {
      const panel = byId('gpu').content.firstElementChild.cloneNode(true), details = panel.querySelector('details');
      panel.dataset.gpu = gpu.uuid;
      details.open = clients <= kProgramsOpen;
      details.addEventListener('toggle', () => showAgain(gpu.uuid));
      byId('gpus').append(panel);
      panels.set(gpu.uuid, partsOf(panel));
      watcher.observe(panel);
      for (const svg of panel.querySelectorAll('svg')) sizes.observe(svg);
    }
    return panels.get(gpu.uuid);
  };
  const forget = (uuid) => {
    watcher.unobserve(panels.get(uuid).panel);
    panels.get(uuid).panel.remove();
    panels.delete(uuid);
    onScreen.delete(uuid);
    past.delete(uuid);
  };

  const rowOfTenant = (id, sum, tenant, gpu) => {
    const memory = tenant.memory.find((each) => each.gpu === gpu.uuid), compute = tenant.compute.find((each) => each.gpu === gpu.uuid);
    return [
      tenant.name, doings(sum.clients, tenant.paused) + (compute && compute.throttled ? '; held back by its limit' : ''),
      bytes(sum.resident), bytes(sum.swapped), memory && memory.limit > 0 ? `${bytes(memory.charged)} of ${bytes(memory.limit)}` : 'none',
      compute ? percent(compute.share_window) : '–', compute ? percent(compute.quota) : '–',
      tenant.gpu_core_limit < 100 ? `${tenant.gpu_core_limit} %` : 'none', tenant.gpu_core_reserved > 0 ? `${tenant.gpu_core_reserved} %` : 'none',
      String(tenant.priority)];
  };
  const rowOfClient = (client, report, nameOf) => [
    client.program, String(client.pid), nameOf(client.tenant), client.state, seconds(sinceOf(client, report)), bytes(client.allocated),
    bytes(client.resident), bytes(client.swapped), String(client.turns), client.waiting_for || '–'];

  // `news`: the clients and tenants that are new, of which alone rows are looked at. Null: all of it, the past and how long each client has been
  // in its state, too.
  const showGpu = (report, view, index, now, news) => {
    const {gpu, sums, history} = view, clients = report.clients.filter((client) => client.gpu === gpu.uuid);
    const parts = panelOf(gpu, clients.length), tenants = report.tenantsById;
    const nameOf = (id) => (tenants.has(id) ? tenants.get(id).name : '?');
    const order = [...sums.keys()].sort((a, b) => markOf(a).number - markOf(b).number);
    let resident = 0, swapped = 0;
    for (const sum of sums.values()) { resident += sum.resident; swapped += sum.swapped; }
    const running = order.filter((id) => sums.get(id).clients.some((client) => client.state === 'running')).map(nameOf);
    const waiting = clients.filter((client) => client.state === 'waiting').length;
    const facts = [
      ['Resident', bytes(resident) + (gpu.safe_limit > 0 || clients.length > 0 ? ` of ${bytes(gpu.safe_limit)}` : '')], ['Swapped', bytes(swapped)],
      ['Other programs', gpu.nvml ? bytes(gpu.foreign) : 'not known'], ['Memory', bytes(gpu.total)],
      ['Runs', namesOf(running)], ['Waiting', String(waiting)], ['Sharing', gpu.compute_mode],
    ];
    if (history.rates) facts.push(['Moving out', `${bytes(history.rates.out)}/s`], ['in', `${bytes(history.rates.in)}/s`]);
    fillFacts(parts.facts, facts);
    fill(parts.tenants, order.map((id) => ({
      key: id, mark: markOf(id), cells: () => rowOfTenant(id, sums.get(id), tenants.get(id) || {...kTenant, name: '?', memory: [], compute: []}, gpu),
    })), news && news.tenants);
    if (parts.details.open) {
      fill(parts.programs, clients.map((client) => ({key: client.id, cells: () => rowOfClient(client, report, nameOf)})), news && news.clients);
    }
    setText(parts.summary, `Programs (${clients.length})`);
    if (news) return;
    const title = `GPU ${index}: ${gpu.name}`;
    setText(parts.title, title);
    setText(parts.uuid, gpu.uuid);
    setAttribute(parts.panel, 'aria-label', title);
    setAttribute(parts.regions[0], 'aria-label', `Tenants of ${title}`);
    setAttribute(parts.regions[1], 'aria-label', `Programs of ${title}`);
    const told = order.map((id) => `${markOf(id).letter} ${nameOf(id)} ${bytes(sums.get(id).resident)}`).join(', ') || 'none';
    setAttribute(parts.memory, 'aria-label', `Memory by tenant over time. Now resident: ${told}. The table has the figures.`);
    setAttribute(parts.turns, 'aria-label', `Turns over time. Now runs: ${running.join(', ') || 'nobody'}.`);
    if (drawn.has(parts.memory) && !onScreen.has(gpu.uuid)) return;  // it is drawn once it comes there
    drawMemory(parts.memory, view, order, now);
    drawTurns(parts.turns, view, order, now);
  };

  // Of `latest`, as it is now.
  const viewOf = (gpu) => {
    const sums = sumsOf(latest, gpu);
    for (const tenant of sums.keys()) markOf(tenant);
    return {gpu, sums, history: past.get(gpu.uuid)};
  };
  const showAgain = (uuid) => {
    const index = latest ? latest.gpus.findIndex((gpu) => gpu.uuid === uuid) : -1;
    if (index < 0 || !past.has(uuid)) return;
    showGpu(latest, viewOf(latest.gpus[index]), index, performance.now(), null);
  };

  let turn = 0;  // of the GPUs that are not on the screen
  const show = (now) => {
    const report = latest, views = report.gpus.filter((gpu) => past.has(gpu.uuid)).map(viewOf);
    const hidden = views.filter(({gpu}) => panels.has(gpu.uuid) && !onScreen.has(gpu.uuid));
    const next = hidden.length ? hidden[++turn % hidden.length] : null;
    for (const view of views) {
      if (!hidden.includes(view) || view === next) showGpu(report, view, report.gpus.indexOf(view.gpu), now, null);
    }
    for (const uuid of [...panels.keys()]) if (!report.gpus.some((gpu) => gpu.uuid === uuid)) forget(uuid);
    setText(byId('about'), `scheduler ${report.version}, process ${report.pid}, up ${seconds(report.uptime_ns)}`);
    setText(byId('host'), `Host memory for swapping: ${bytes(report.host_memory_used)} used of ${bytes(report.host_memory_budget)}` +
      (report.host_memory_bound ? ` (${report.host_memory_bound})` : ''));
    const absent = report.tenants.filter((tenant) => tenant.clients === 0).map((tenant) => tenant.name);
    byId('absent').hidden = absent.length === 0;
    setText(byId('absent'), `Tenants without a program on a GPU: ${absent.join(', ')}`);
    byId('none').hidden = report.gpus.length > 0;
    const bypasses = report.bypasses || [];
    const gpuOf = (uuid) => {
      const index = report.gpus.findIndex((gpu) => gpu.uuid === uuid);
      return index < 0 ? uuid : `GPU ${index} (${uuid})`;
    };
    byId('bypasses').hidden = bypasses.length === 0;
    const list = byId('bypasses').querySelector('ul');
    const texts = bypasses.map((each) => `${each.program} (process ${each.pid}) of ${each.tenant}: ${bytes(each.used)} on ${gpuOf(each.gpu)}`);
    if ([...list.children].map((item) => item.textContent).join('\n') !== texts.join('\n')) {
      list.replaceChildren(...texts.map((text) => Object.assign(document.createElement('li'), {textContent: text})));
    }
    for (const uuid of onScreen) if (panels.has(uuid)) [panels.get(uuid).tenants, panels.get(uuid).programs].forEach(setColumns);
    document.body.dataset.reports = String(Number(document.body.dataset.reports || 0) + 1);
  };

  // For how long it has been in its state: what is left out of news has its time of an earlier report.
  const sinceOf = (client, report) => client.since_ns + report.uptime_ns - client.toldAt;
  const byIds = (all) => new Map(all.map((each) => [each.id, each]));

  // What a line leaves out, of what is shown here.
  const kGpu = {total: 0, safe_limit: 0, foreign: 0, overhead: 0, departed: 0, nvml: false, compute_mode: ''};
  const kUsage = {swapped_out: 0, swapped_in: 0};
  const kTenant = {name: '', priority: 0, clients: 0, gpu_core_limit: 100, gpu_core_reserved: 0, paused: false};
  const kClient = {pid: 0, program: '', state: '', since_ns: 0, waiting_for: '', allocated: 0, resident: 0, swapped: 0, turns: 0,
                   time_running_ns: 0, time_waiting_ns: 0, time_swapping_ns: 0};
  const inFull = (report) => ({
    version: '', pid: 0, epoch: 0, changes: 0, since: 0, uptime_ns: 0, host_memory_used: 0, host_memory_budget: 0, ...report,
    gpus: (report.gpus || []).map((gpu) => ({...kGpu, ...gpu, usage: {...kUsage, ...gpu.usage}})),
    tenants: (report.tenants || []).map((tenant) => ({
      ...kTenant, ...tenant, memory: (tenant.memory || []).map((each) => ({limit: 0, charged: 0, ...each})),
      compute: (tenant.compute || []).map((each) => ({quota: 100, share_window: 0, ...each}))})),
    clients: (report.clients || []).map((client) => ({...kClient, ...client, toldAt: report.uptime_ns})),
    bypasses: (report.bypasses || []).map((each) => ({used: 0, ...each})),
  });

  // What is new since `latest`, put into it: clients in the order of `there`. False: it is of another one.
  const stale = new Map();  // GPU that is to be drawn anew -> its clients and tenants that are new
  const complete = (news) => {
    if (!latest || news.epoch !== latest.epoch || news.pid !== latest.pid || news.since !== latest.changes) return false;
    const known = byIds(latest.clients), tenantsById = latest.tenantsById, ids = news.there || [];
    for (const client of news.clients) known.set(client.id, client);
    for (const tenant of news.tenants) tenantsById.set(tenant.id, tenant);
    const there = new Set(ids), newTenants = new Set(news.tenants.map((tenant) => tenant.id));
    const mark = (gpu) => {
      if (!stale.has(gpu)) stale.set(gpu, {clients: new Set(), tenants: new Set()});
      return stale.get(gpu);
    };
    for (const client of news.clients) mark(client.gpu).clients.add(client.id);
    for (const client of news.clients) mark(client.gpu).tenants.add(client.tenant);
    for (const client of latest.clients) if (!there.has(client.id)) mark(client.gpu).tenants.add(client.tenant);
    for (const client of known.values()) if (newTenants.has(client.tenant)) mark(client.gpu).tenants.add(client.tenant);
    latest = {...news, clients: ids.map((id) => known.get(id)).filter(Boolean), tenants: [...tenantsById.values()], tenantsById};
    return true;
  };
  // Whether a whole report has news of the GPUs on the screen, which came with no line before it.
  const differ = (was, now, fields) => !was || fields.some((field) => was[field] !== now[field]);
  const limitsOf = (tenant) => tenant.memory.map(({gpu, limit}) => `${gpu} ${limit}`).join();
  const tellsNews = (report) => {
    if (!latest || latest.pid !== report.pid || latest.epoch !== report.epoch || isToBeDrawn()) return true;
    const shownOf = ({clients}) => clients.filter(({gpu}) => onScreen.has(gpu)), shown = shownOf(report), known = byIds(shownOf(latest));
    if (shown.length !== known.size || report.gpus.length !== latest.gpus.length) return true;
    if (shown.some((client) => differ(known.get(client.id), client, ['state', 'turns', 'waiting_for']))) return true;
    const ids = new Set(shown.map(({tenant}) => tenant));
    return report.tenants.some((tenant) => {
      const was = latest.tenantsById.get(tenant.id);
      return ids.has(tenant.id) && (differ(was, tenant, ['name', 'priority', 'paused', 'gpu_core_limit', 'gpu_core_reserved']) ||
                                    limitsOf(was) !== limitsOf(tenant));
    });
  };
  const isToBeDrawn = () => [...stale.keys()].some((uuid) => onScreen.has(uuid));
  const showNews = () => {
    latest.gpus.forEach((gpu, index) => {
      if (!stale.has(gpu.uuid) || !onScreen.has(gpu.uuid)) return;  // a new GPU comes with the next whole report
      showGpu(latest, viewOf(gpu), index, 0, stale.get(gpu.uuid));
    });
    stale.clear();
  };

  // ---- asking ----
  const kTokenKey = 'nvshare-page-token';
  if (location.hash.startsWith('#token=')) {  // never sent to anybody; not kept in the address
    let token = location.hash.slice(7);
    try { token = decodeURIComponent(token); } catch (problem) { console.warn(problem); }  // as it stands there
    sessionStorage.setItem(kTokenKey, token);
    history.replaceState(null, '', location.pathname);
  }
  let held = false, timer = 0, lookTimer = 0, answeredAt = 0, savedMs = kSavedMs, savedAt = 0;
  const say = (text, lost) => {
    setText(byId('connection'), text);
    byId('connection').classList.toggle('lost', lost);
  };
  const askForToken = (text) => {
    say(text, true);
    byId('ask').hidden = false;
    byId('token').focus();
  };
  const next = (ms) => {
    clearTimeout(timer);
    if (!held) timer = setTimeout(follow, ms);
  };
  const saved = (now) => Math.min(kSavedMs, savedMs + kShare * (now - savedAt));
  const spend = (ms) => {
    const now = performance.now();
    savedMs = saved(now) - ms;
    savedAt = now;
  };
  const costs = {look: [], report: []};  // milliseconds of this thread for the last ones, the browser's picture included
  const costWith = (list, ms) => {
    list.push(ms);
    if (list.length > kRecent) list.shift();
    return Math.min(typical(list), kCostMaxMs);
  };
  const afterPicture = [], channel = new MessageChannel();
  channel.port1.onmessage = () => afterPicture.shift()();
  // Something was written since `began`. How long the picture takes is known once a task comes after it.
  const countPicture = (list, began) => {
    const wroteMs = performance.now() - began;
    requestAnimationFrame(() => {
      const begins = performance.now();
      afterPicture.push(() => spend(kAllThreads * costWith(list, wroteMs + performance.now() - begins)));
      channel.port2.postMessage(null);
    });
  };
  let lookedAt = 0, reportedAt = 0, quietTimer = 0;  // reportedAt: when a whole report came that is still to be drawn
  const showReport = () => {
    clearTimeout(quietTimer);
    const began = performance.now(), came = reportedAt;
    reportedAt = quietTimer = 0;
    if (held || !latest || !came) return;
    stale.clear();
    show(came);
    lookedAt = performance.now();
    countPicture(costs.report, began);
  };
  const look = () => {
    lookTimer = 0;
    if (held || !latest || !isToBeDrawn()) return;
    if (reportedAt) return showReport();
    const began = performance.now();
    showNews();
    lookedAt = performance.now();
    countPicture(costs.look, began);
  };
  // `now`: when it came. False: all of it is needed.
  const take = (report, now) => {
    if (report.since) {
      if (!complete(report)) return false;
      spend(kAllThreads * Math.min(performance.now() - now, kCostMaxMs));
      if (lookTimer || !isToBeDrawn()) return true;
      const wait = Math.max(lookedAt + kApartMs - now, -saved(now) / kShare);
      if (wait > 0) lookTimer = setTimeout(look, wait); else look();
      return true;
    }
    const hasNews = tellsNews(report);
    latest = report;
    latest.tenantsById = byIds(report.tenants);
    remember(report, now);
    reportedAt = now;
    spend(kAllThreads * Math.min(performance.now() - now, kCostMaxMs));
    if (hasNews) showReport(); else if (!quietTimer) quietTimer = setTimeout(showReport, kQuietMs);
    return true;
  };
  // Calls `line` with each that comes, until it returns false.
  const readLines = async (body, line) => {
    const reader = body.getReader(), decoder = new TextDecoder();
    let rest = '';
    for (;;) {
      const {done, value} = await reader.read();
      if (done) return;
      const parts = decoder.decode(value, {stream: true}).split('\n');
      parts[0] = rest + parts[0];
      rest = parts.pop();
      for (const each of parts) if (!line(each)) return;
    }
  };
  const tokenHeader = () => {
    const token = sessionStorage.getItem(kTokenKey);
    return token ? {Authorization: `Bearer ${token}`} : {};
  };
  // Once for each scheduler. Without an answer the past begins now.
  async function askForPast() {
    const mine = epoch;
    try {
      const answer = await fetch('past.jsonl', {cache: 'no-store', credentials: 'omit', headers: tokenHeader()});
      if (!answer.ok) return;
      const text = await answer.text(), now = performance.now();
      if (mine !== epoch || !text) return;
      for (const [uuid, cells] of remembered.cellsOf(text, now, kCellMs)) {
        if (!past.has(uuid)) continue;
        putBefore(past.get(uuid), cells);
        if (onScreen.has(uuid)) showAgain(uuid);
      }
    } catch (problem) {
      console.warn(problem);
    }
  }
  let asking = 0, question = null;  // what is followed now, to be taken back
  const giveUp = () => {
    ++asking;
    if (question) question.abort();
    question = null;
  };
  // Other GPUs are on the screen. One that came may have changed since.
  const askAnew = (ms) => {
    if (question && latest && !document.hidden) next(ms);
  };
  async function follow() {
    giveUp();
    const token = sessionStorage.getItem(kTokenKey), mine = asking, hidden = document.hidden, askedAt = performance.now();
    const url = hidden ? 'status.json' : latest ? `status.jsonl?gpus=${[...onScreen].join()}&changes=${latest.changes}` : 'status.jsonl';
    const asked = question = new AbortController();
    let patience = setTimeout(() => asked.abort(), kPatienceMs);
    try {
      const answer = await fetch(url, {
        cache: 'no-store', credentials: 'omit', signal: asked.signal, headers: tokenHeader(),
      });
      if (answer.status === 401) return askForToken(token ? 'The token is wrong' : 'The scheduler asks for a token');
      if (!answer.ok) throw new Error((await answer.json()).error);
      await readLines(answer.body, (line) => {
        if (mine !== asking || held) return false;  // another question was asked since, or the picture is held still
        clearTimeout(patience);
        patience = setTimeout(() => asked.abort(), kPatienceMs);
        answeredAt = performance.now();
        if (!take(inFull(JSON.parse(line)), answeredAt)) latest = null;  // all of it, next
        say('Live', false);
        return latest !== null;
      });
      // One that ended at once: too many follow.
      const late = latest && !hidden && performance.now() - askedAt < kAgainMs;
      if (mine === asking) next(hidden ? kHiddenMs : late ? kAgainMs : kApartMs);
    } catch (problem) {
      if (mine !== asking) return;
      latest = null;
      const age = answeredAt ? `, figures are ${seconds((performance.now() - answeredAt) * 1e6)} old` : '';
      say(`No answer from the scheduler${age}`, true);
      console.warn(problem);
      next(kAgainMs);
    } finally {
      clearTimeout(patience);
    }
  }
  byId('hold').addEventListener('click', () => {
    held = !held;
    byId('hold').setAttribute('aria-pressed', String(held));
    if (held) { clearTimeout(timer); giveUp(); say('Held still', false); } else follow();
  });
  byId('ask').addEventListener('submit', (event) => {
    event.preventDefault();
    sessionStorage.setItem(kTokenKey, byId('token').value.trim());
    byId('token').value = '';
    byId('ask').hidden = true;
    follow();
  });
  document.addEventListener('visibilitychange', () => { if (!held) next(0); });
  follow();
})();
