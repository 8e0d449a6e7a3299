// Turns the output of programs into text with colours. Comes in: lines as a terminal gets them. Goes
// out: pieces of plain text with class names, which the page shows as text nodes and nothing else.
export interface Piece {
  text: string;
  style: string;
}

export class AnsiReader {
  private colour = "";
  private bold = false;

  // Reads one line; colours go on into the next.
  line(raw: string): Piece[] {
    // A carriage return begins the line again, as progress bars do.
    const kept = raw.replace(/\r+$/, "");
    const line = kept.slice(kept.lastIndexOf("\r") + 1);
    const pieces: Piece[] = [];
    let at = 0;
    // Control sequences: colours are read, all others (titles, cursor moves, links) are left out.
    // eslint-disable-next-line no-control-regex
    const sequences = /\x1b(?:\[([0-9;:?]*)[ -/]*([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\|$)|[@-Z\\^_]|[ -/]+[0-~]|$)/g;
    for (let found = sequences.exec(line); found; found = sequences.exec(line)) {
      this.add(pieces, line.slice(at, found.index));
      at = found.index + found[0].length;
      if (found[2] === "m") this.paint(found[1] ?? "");
      if (found[0] === "") break;
    }
    this.add(pieces, line.slice(at));
    return pieces;
  }

  private add(pieces: Piece[], text: string): void {
    // Other control characters would be invisible; only tabs mean something.
    // eslint-disable-next-line no-control-regex
    const visible = text.replace(/[\x00-\x08\x0b-\x1f\x7f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "");
    if (visible) pieces.push({ text: visible, style: `${this.colour}${this.bold ? " ansi-bold" : ""}`.trim() });
  }

  private paint(codes: string): void {
    const numbers = codes.split(/[;:]/).map(Number);
    for (let i = 0; i < numbers.length; i += 1) {
      const code = numbers[i] ?? 0;
      if (code === 0) {
        this.colour = "";
        this.bold = false;
      } else if (code === 1) this.bold = true;
      else if (code === 22) this.bold = false;
      else if (code >= 30 && code <= 37) this.colour = `ansi-${code - 30}`;
      else if (code >= 90 && code <= 97) this.colour = `ansi-${code - 90}`;
      else if (code === 39) this.colour = "";
      else if (code === 38 && numbers[i + 1] === 5) {
        const index = numbers[i + 2] ?? 0;
        this.colour = index < 16 ? `ansi-${index % 8}` : `ansi-${nearest(index)}`;
        i += 2;
      } else if (code === 38) i += 4;
      else if (code === 48) i += numbers[i + 1] === 5 ? 2 : 4;
    }
  }
}

// The nearest of eight colours to one of the 256.
function nearest(index: number): number {
  if (index >= 232) return index < 244 ? 0 : 7;
  const cube = index - 16;
  const on = (part: number): number => (part >= 3 ? 1 : 0);
  return on(Math.floor(cube / 36)) + 2 * on(Math.floor(cube / 6) % 6) + 4 * on(cube % 6);
}
