// The live page of a job: it listens to the server's events and shows them. Text of ranks and hosts is set
// as textContent only.

import { Ranks, make, setText } from "./table.js";
import { curve, matrix } from "./draw.js";

const MAX_LINES = 200; // most lines of output
const POINTS = 120; // most points of a curve
const $ = (id) => document.getElementById(id);

history.replaceState(null, "", location.pathname); // takes the token out of the address bar

const ranks = new Ranks($("hosts"), $("ranks"), $("more"));
let layout = { job: "", hosts: [], names: [] };
let rates = [];
let lastMatrix = null;
let ended = false;
const captures = document.querySelectorAll("#captures button");

const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
const integer = (n) => Math.round(n).toLocaleString("en-US");
const megabytes = (n) => (n / 1e6).toLocaleString("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

function size(bytes) {
  let unit = 0;
  for (; bytes >= 1024 && unit < 5; unit++) bytes /= 1024;
  return (unit === 0 ? bytes : bytes.toFixed(1)) + " " + ["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit];
}

function duration(seconds) {
  const s = Math.floor(seconds);
  const parts = [Math.floor(s / 3600), Math.floor(s / 60) % 60, s % 60];
  const text = (parts[0] ? parts[0] + "h" : "") + (s >= 60 ? parts[1] + "m" : "") + parts[2] + "s";
  return text;
}

function phase(text, className) {
  setText($("phase"), text);
  $("phase").className = className;
}

function drawCurves() {
  curve($("calls-curve"), rates.map((r) => r[0]), POINTS, integer);
  curve($("bytes-curve"), rates.map((r) => r[2]), POINTS, megabytes);
}

function drawMatrix() {
  if (!lastMatrix || lastMatrix.max === 0) return;
  const m = lastMatrix;
  matrix($("matrix"), m);
  const cell = m.block > 1 ? ` Each cell is ${m.block} by ${m.block} ranks.` : "";
  const most = ` Most: ${m.most}; the strongest cell is ${size(m.max)}.`;
  setText($("matrix-text"), `Row: sender, column: receiver, ranks ${m.names}.${cell}${most}`);
}

const handlers = {
  history(list) {
    rates = (list ?? []).slice(0, -1); // the state that follows has the last point
  },

  layout(l) {
    if (l.job !== layout.job) rates = rates.slice(-1);
    layout = l;
    setText($("name"), l.name);
    document.title = l.name + " – gorun";
    ranks.layout(l);
    lastMatrix = null;
    $("matrix-part").hidden = true;
  },

  state(s) {
    if (!ended) phase(s.phase, s.phase);
    const where = layout.names.length ? `${plural(layout.names.length, "rank")} on ${plural(layout.hosts.length, "host")}` : "no ranks yet";
    setText($("summary"), [layout.job && "job " + layout.job, where, duration(s.seconds)].filter(Boolean).join(" · "));
    ranks.update(s.rows);
    rates = [...rates, s.total].slice(-POINTS);
    setText($("calls"), integer(s.total[0]));
    setText($("bytes"), megabytes(s.total[2]));
    drawCurves();
    $("silent").hidden = !s.silent;
    setText($("silent"), "no answer from " + (s.silent ?? []).join(", "));
    showStall(s.stall ?? []);
  },

  matrix(m) {
    lastMatrix = m;
    $("matrix-part").hidden = m.max === 0; // collectives in shared memory need no messages
    drawMatrix();
  },

  report(r) {
    setText($("report"), (r.lines ?? []).join("\n"));
    $("report").hidden = false;
    setText($("report-time"), "at " + new Date().toLocaleTimeString());
  },

  output(lines) {
    const out = $("output");
    const atEnd = out.scrollHeight - out.scrollTop - out.clientHeight < 30;
    for (const l of lines) {
      const line = make("div", l.err ? "err" : "");
      line.append(make("span", "", l.from), make("span", "", l.text));
      out.append(line);
    }
    while (out.childElementCount > MAX_LINES) out.firstElementChild.remove();
    if (atEnd) out.scrollTop = out.scrollHeight;
  },

  end(e) {
    ended = true;
    source.close();
    phase(e.failed ? "failed" : "ended", e.failed ? "bad" : "good");
    const end = $("end");
    setText(end, e.text);
    end.className = "notice " + (e.failed ? "bad" : "good");
    end.hidden = false;
    $("inspect").disabled = true;
    for (const b of captures) b.disabled = true;
  },
};

// showStall shows lines about a stall. An element whose text stays is left alone, so that a screen reader
// speaks only new lines; it does not speak the times.
function showStall(notes) {
  const list = $("stall-list");
  $("stall").hidden = notes.length === 0;
  while (list.childElementCount > notes.length) list.lastElementChild.remove();
  notes.forEach((n, i) => {
    let li = list.children[i];
    if (!li) {
      li = make("li", "");
      const age = make("span", "age");
      age.setAttribute("aria-live", "off");
      li.append(make("span", ""), " ", age);
      list.append(li);
    }
    setText(li.firstElementChild, n.text);
    setText(li.lastElementChild, n.age ?? "");
  });
}

const source = new EventSource("events");
for (const [name, handle] of Object.entries(handlers)) {
  source.addEventListener(name, (e) => handle(JSON.parse(e.data)));
}
source.addEventListener("error", () => {
  if (!ended) phase(source.readyState === EventSource.CLOSED ? "no connection; reload the page" : "no connection", "bad");
});
source.addEventListener("open", () => $("output").replaceChildren());

$("inspect").addEventListener("click", async () => {
  $("inspect").disabled = true;
  setText($("report-time"), "asking the ranks …");
  try {
    const answer = await fetch("inspect", { method: "POST" });
    if (!answer.ok) setText($("report-time"), "gorun has not answered");
  } catch {
    setText($("report-time"), "gorun does not answer");
  }
  $("inspect").disabled = ended;
});

// A trace or a profile: gorun makes it, and then the browser downloads it.
for (const button of captures) {
  button.addEventListener("click", async () => {
    const say = (...parts) => $("captured").replaceChildren(...parts);
    for (const b of captures) b.disabled = true;
    say("recording …");
    try {
      const answer = await fetch("capture?kind=" + button.value, { method: "POST" });
      if (answer.ok) {
        const made = await answer.json();
        const link = make("a", "", made.name);
        link.href = made.url;
        link.download = made.name;
        say(link, ...(made.lines ?? []).map((l) => "\n" + l));
        link.click();
      } else {
        say("failed: " + (await answer.text()).trim());
      }
    } catch {
      say("gorun does not answer");
    }
    for (const b of captures) b.disabled = ended;
  });
}

const redraw = () => {
  drawCurves();
  drawMatrix();
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
addEventListener("resize", redraw);
