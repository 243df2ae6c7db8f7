// Curves, and the matrix of messages.

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// fit gives a canvas as many pixels as it has on the screen. It returns its context, width and height in
// CSS pixels.
function fit(canvas) {
  const { width, height } = canvas.getBoundingClientRect();
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  const c = canvas.getContext("2d");
  c.scale(scale, scale);
  return [c, width, height];
}

// curve draws values, the newest at the right, with room for points of them.
export function curve(canvas, values, points, label) {
  const [c, width, height] = fit(canvas);
  const top = Math.max(...values, 0);
  const x = (i) => width - ((values.length - 1 - i) / (points - 1)) * width;
  const y = (v) => height - 1 - (top > 0 ? v / top : 0) * (height - 18);
  c.strokeStyle = color("--line");
  c.beginPath();
  c.moveTo(0, height - 0.5);
  c.lineTo(width, height - 0.5);
  c.stroke();
  if (values.length === 0) return;
  c.beginPath();
  values.forEach((v, i) => (i === 0 ? c.moveTo(x(i), y(v)) : c.lineTo(x(i), y(v))));
  c.strokeStyle = color("--accent");
  c.lineWidth = 1.5;
  c.stroke();
  c.lineTo(width, height);
  c.lineTo(x(0), height);
  c.fillStyle = color("--accent");
  c.globalAlpha = 0.15;
  c.fill();
  c.globalAlpha = 1;
  c.fillStyle = color("--soft");
  c.font = "11px system-ui, sans-serif";
  c.fillText("highest " + label(top), 2, 11);
}

const rgb = (text) => [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));

// matrix draws a cell for each pair of ranks: row = sender, column = receiver.
export function matrix(canvas, m) {
  const cells = Uint8Array.from(atob(m.cells), (ch) => ch.charCodeAt(0));
  canvas.width = canvas.height = m.size;
  const c = canvas.getContext("2d");
  const image = c.createImageData(m.size, m.size);
  const none = rgb(color("--back"));
  const low = rgb(color("--cell-low"));
  const high = rgb(color("--cell-high"));
  cells.forEach((v, i) => {
    for (let k = 0; k < 3; k++) image.data[4 * i + k] = v === 0 ? none[k] : low[k] + ((high[k] - low[k]) * v) / 255;
    image.data[4 * i + 3] = 255;
  });
  c.putImageData(image, 0, 0);
}
