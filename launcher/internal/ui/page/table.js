// The list of hosts and the table of ranks. A cell of the page changes only if its text does.

const MAX_ROWS = 512; // most ranks in the table
const MAX_CELLS = 4096; // most ranks in the list of hosts
const CLASSES = ["running", "in a collective, or waiting", "finalized", "ended", "failed", "not in weft"];

const integer = (n) => n.toLocaleString("en-US");
const columns = [
  { name: "rank", title: "Rank", text: true, value: (r) => r.index, show: (r) => r.name },
  { name: "host", title: "Host", text: true, value: (r) => r.hostAt, show: (r) => r.host },
  { name: "state", title: "State", text: true, value: (r) => r.row[1], show: (r) => r.row[1] },
  { name: "part", title: "In weft", value: (r) => r.row[2], show: (r) => r.row[2] + " %" },
  { name: "calls", title: "Calls/s", value: (r) => r.row[3], show: (r) => integer(r.row[3]) },
  { name: "messages", title: "Messages/s", value: (r) => r.row[4], show: (r) => integer(r.row[4]) },
  { name: "bytes", title: "MB/s", value: (r) => r.row[5], show: (r) => (r.row[5] / 1e6).toFixed(1) },
];

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function make(tag, className, text = "") {
  const e = document.createElement(tag);
  e.className = className;
  e.textContent = text;
  return e;
}

export class Ranks {
  constructor(hosts, table, more) {
    this.hosts = hosts;
    this.body = table.tBodies[0];
    this.more = more;
    this.ranks = [];
    this.rows = [];
    this.by = columns[0];
    this.down = false;
    this.heads = columns.map((c) => {
      const th = make("th", "c-" + c.name + (c.text ? " text" : ""));
      th.scope = "col";
      const button = make("button", "", c.title);
      button.type = "button";
      button.addEventListener("click", () => this.sortBy(c));
      th.append(button);
      table.tHead.rows[0].append(th);
      return th;
    });
    this.markHead();
  }

  sortBy(column) {
    this.down = column === this.by ? !this.down : !column.text;
    this.by = column;
    this.markHead();
    this.draw();
  }

  markHead() {
    columns.forEach((c, i) => {
      if (c === this.by) this.heads[i].setAttribute("aria-sort", this.down ? "descending" : "ascending");
      else this.heads[i].removeAttribute("aria-sort");
    });
  }

  // layout begins again with other ranks.
  layout(l) {
    this.ranks = l.names.map((name, index) => ({
      index, name, hostAt: l.hostOf[index], host: l.hosts[l.hostOf[index]] ?? "", row: [5, "", 0, 0, 0, 0],
    }));
    this.hosts.replaceChildren();
    this.ofHost = l.hosts.map((name) => {
      const li = make("li", "");
      const cells = make("span", "cells");
      cells.setAttribute("aria-hidden", "true");
      const count = make("span", "count");
      const title = make("b", "", name);
      title.title = name;
      li.append(title, cells, count);
      this.hosts.append(li);
      return { cells, count, ranks: [] };
    });
    for (const r of this.ranks) {
      const host = this.ofHost[r.hostAt];
      host?.ranks.push(r);
      if (this.ranks.length > MAX_CELLS || !host) continue;
      r.cell = make("i", "cell c5");
      host.cells.append(r.cell);
    }
    this.body.replaceChildren();
    this.rows = this.ranks.slice(0, MAX_ROWS).map(() => {
      const tr = document.createElement("tr");
      const cells = columns.map((c) => {
        const td = make("td", "c-" + c.name + " " + c.name + (c.text ? " text" : ""));
        tr.append(td);
        return td;
      });
      const mark = make("i", "cell");
      mark.setAttribute("aria-hidden", "true");
      const text = document.createElement("span");
      cells[2].append(mark, text);
      this.body.append(tr);
      return { cells, mark, text };
    });
    const left = this.ranks.length - this.rows.length;
    this.more.hidden = left <= 0;
    setText(this.more, `${integer(left)} more ranks are not shown; sort by another column to see others`);
  }

  // update shows new rows, one for each rank.
  update(rows) {
    if (rows.length !== this.ranks.length) return;
    rows.forEach((row, i) => {
      const r = this.ranks[i];
      r.row = row;
      if (!r.cell) return;
      const name = "cell c" + row[0];
      const title = `rank ${r.name}: ${row[1]}`;
      if (r.cell.className !== name) r.cell.className = name;
      if (r.cell.title !== title) r.cell.title = title;
    });
    for (const host of this.ofHost) {
      const counts = CLASSES.map(() => 0);
      for (const r of host.ranks) counts[r.row[0]]++;
      const parts = CLASSES.map((c, i) => [counts[i], c]).filter(([n]) => n > 0).map(([n, c]) => `${n} ${c}`);
      setText(host.count, `${host.ranks.length} ${host.ranks.length === 1 ? "rank" : "ranks"}: ${parts.join(", ") || "none"}`);
    }
    this.draw();
  }

  // draw shows the ranks in the order that the user wants. Elements stay where they are, and get the text
  // of another rank, so the keyboard's focus and the scroll position stay, too.
  draw() {
    const value = this.by.value;
    const sign = this.down ? -1 : 1;
    const order = [...this.ranks].sort((a, b) => {
      const x = value(a);
      const y = value(b);
      return (x < y ? -sign : x > y ? sign : 0) || a.index - b.index;
    });
    this.rows.forEach(({ cells, mark, text }, i) => {
      const r = order[i];
      columns.forEach((c, k) => setText(k === 2 ? text : cells[k], c.show(r)));
      const name = "cell c" + r.row[0];
      if (mark.className !== name) mark.className = name;
      const part = r.row[2] + "%";
      if (cells[3].style.getPropertyValue("--part") !== part) cells[3].style.setProperty("--part", part);
    });
  }
}
