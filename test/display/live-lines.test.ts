import { describe, expect, it } from "vitest";
import { fitParts, LiveLines, progressBar } from "../../lib/display/live-lines.ts";

const esc = "\x1b";
/** The control codes that are used, line breaks, and text. */
const control = new RegExp(`${esc}\\[\\d+[AJ]|\\r|\\n|[^${esc}\\r\\n]+`, "g");

/** A terminal of `columns` columns that understands the two control codes that are used. */
function terminal(columns: number) {
  let lines = [""];
  let row = 0;
  return {
    isTTY: true,
    columns,
    write(text: string) {
      for (const [part] of text.matchAll(control)) {
        const up = /\[(\d+)A/.exec(part);
        if (up) row -= Number(up[1]);
        else if (part === "\x1b[0J") {
          lines = lines.slice(0, row + 1);
          lines[row] = "";
        } else if (part === "\n") {
          row++;
          lines[row] ??= "";
        } else if (part !== "\r") lines[row] += part;
      }
    },
    shown: () => lines,
  };
}

describe("LiveLines", () => {
  it("replaces what was drawn, and prints notes above it", () => {
    const screen = terminal(80);
    const live = new LiveLines(screen);
    live.draw(["a 1", "b 1", "c 1"]);
    live.draw(["a 2", "b 2"]);
    expect(screen.shown()).toEqual(["a 2", "b 2"]);
    live.note("a warning");
    live.draw(["a 3"]);
    expect(screen.shown()).toEqual(["a warning", "a 3"]);
    live.end();
    live.draw(["next"]);
    expect(screen.shown()).toEqual(["a warning", "a 3", "next"]);
    live.clear();
    expect(screen.shown()).toEqual(["a warning", "a 3", ""]);
  });

  it("cuts lines at the terminal's width, so that none wraps", () => {
    const screen = terminal(30);
    new LiveLines(screen).draw(["x".repeat(100)]);
    expect(screen.shown()).toEqual(["x".repeat(29)]);
  });

  it("prints only notes to what is no terminal", () => {
    const written: string[] = [];
    const live = new LiveLines({ write: (text) => written.push(text) });
    live.draw(["a"]);
    live.note("b");
    live.clear();
    live.end();
    expect(written).toEqual(["b\n"]);
  });
});

describe("fitParts", () => {
  const parts = [
    { text: "12s", drop: 0 },
    { text: "loss 0.5", drop: 2 },
    { text: "success 1", drop: 1 },
    { text: "9/s", drop: 2 },
  ];

  it("leaves out the least important parts first, the later of equal ones", () => {
    expect(fitParts(parts, 40)).toBe("12s  loss 0.5  success 1  9/s");
    expect(fitParts(parts, 28)).toBe("12s  loss 0.5  success 1");
    expect(fitParts(parts, 20)).toBe("12s  success 1");
    expect(fitParts(parts, 1)).toBe("12s");
    expect(fitParts([], 10)).toBe("");
  });
});

describe("progressBar", () => {
  it("is as wide as asked for, whatever the share", () => {
    expect([0, 0.5, 1, 1.5].map((share) => progressBar(share, 4))).toEqual(["░░░░", "██░░", "████", "████"]);
  });
});
