import { execFileSync, spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Script } from "node:vm";
import fc from "fast-check";
import { afterAll, describe, expect, test } from "vitest";
import { figuresOf, summarize } from "../../lib/episodes/figures.ts";
import type { EpisodeRecord } from "../../lib/episodes/records.ts";
import { figureLines } from "../../lib/report/figures.ts";
import { renderEpisodes } from "../../lib/report/page.ts";
import { faultOf } from "../support/xml.ts";

const root = mkdtempSync(join(tmpdir(), "nlac-page-"));
afterAll(() => rmSync(root, { recursive: true, force: true }));

function episode(id: number, change: Partial<EpisodeRecord> = {}, said = "hello"): EpisodeRecord {
  return {
    id,
    task: `task ${id % 3}`,
    seed: 7,
    outcome: "done",
    reward: id % 2,
    opening: [
      { role: "system", content: "The same rules for all." },
      { role: "user", content: said },
    ],
    turns: [
      {
        state: 1,
        text: `Thought:\nt\nAction:\n${said}`,
        action: { thought: "a thought", text: said },
        observation: [{ role: "tool", content: '{"found":[1,2]}' }],
        reward: id % 2,
        terminated: true,
        truncated: false,
        info: { toolError: true },
      },
    ],
    conversation: { version: 1, tokens: [], segments: [], turns: [], system: true },
    ...change,
  };
}

function page(episodes: readonly EpisodeRecord[], title = "errands, test"): string {
  return renderEpisodes({ title, player: "mine", figures: summarize(episodes.map(figuresOf)) }, episodes);
}

/**
 * What stands between the tags of the page's elements of a name: as a browser's parser would cut
 * them.
 */
function contents(html: string, name: "script" | "style"): string[] {
  return [...html.matchAll(new RegExp(`<${name}[^>]*>(.*?)</${name}`, "gis"))].map(([, text]) => text!);
}

test("success is called pass^1 only if tasks were played equally often", () => {
  const played = (...tasks: [task: string, reward: number][]) =>
    figureLines({
      title: "",
      figures: summarize(
        tasks.map(([task, reward], id) => figuresOf(episode(id, { task, reward }))),
        2,
      ),
    })
      .filter(({ label }) => /success|pass/.test(label))
      .map(({ label, estimate, note }) => [label, estimate, note]);
  const equal = played(["a", 1], ["a", 1], ["b", 0], ["b", 1]);
  expect(equal).toEqual([
    ["success", 0.75, "pass^1"],
    ["pass^2", 0.5, undefined],
  ]);
  // Three successes in three trials of one task, and none in one of the other.
  const unequal = played(["a", 1], ["a", 1], ["a", 1], ["b", 0]);
  expect(unequal).toEqual([
    ["success", 0.75, undefined],
    ["pass^1", 0.5, undefined],
    ["pass^2", 1, undefined],
  ]);
});

test("of a turn, the page has what it shows, and not the ids that reasoning models sampled", () => {
  const sampled = { tokens: [1, 2, 3], logProbs: "AAAA" };
  const [{ turns }] = [episode(0)];
  const { episodes } = dataOf(page([episode(0, { turns: [{ ...turns[0]!, sampled }] })]));
  expect(Object.keys(episodes[0].turns[0]).sort()).toEqual([
    "action",
    "info",
    "observation",
    "reward",
    "text",
  ]);
});

test("a page that is too large for a text is a coded error, which says what to do", () => {
  const long = "x".repeat(2 ** 20);
  const many = Array.from({ length: 520 }, (_, id) => episode(id, { task: long }));
  expect(() => page(many)).toThrow(
    expect.objectContaining({ code: "ERR_VALUE", message: expect.stringContaining("fewer episodes") }),
  );
});

const dataOf = (html: string) => JSON.parse(contents(html, "script")[0]!);
const hostile =
  "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\"><!--\u2028&amp;";

describe("the page", () => {
  test("loads nothing, and allows only its own script and styles", () => {
    const html = page([episode(0, {}, hostile)], hostile);
    const [data, script] = contents(html, "script");
    expect(contents(html, "script")).toHaveLength(2);
    new Script(script!); // it is one
    const hash = (text: string) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;
    expect(html).toContain(
      `http-equiv="Content-Security-Policy" content="default-src 'none'; script-src ${hash(script!)}; ` +
        `style-src ${hash(contents(html, "style")[0]!)}; base-uri 'none'; form-action 'none'"`,
    );
    const markup = html.replace(data!, "").replace(script!, "");
    expect(faultOf(markup.replace(/<style>.*<\/style>/s, ""))).toBeUndefined();
    expect(markup).not.toMatch(/<[a-z][^>]*\s(?:src|href|style|on\w+)=/);
    expect(markup).not.toMatch(/https?:/);
    expect(script).not.toMatch(/innerHTML|outerHTML|insertAdjacent|document\.write|eval|\.style\b/);
  });

  test("draws bars for shares only, and the critic's diagnosis if there is one", () => {
    const episodes = [episode(0), episode(1)];
    const figures = summarize(episodes.map(figuresOf));
    expect(figures.turns).toMatchObject({ estimate: 1, low: 1, high: 1 });
    const plain = renderEpisodes({ title: "t", player: "mine", figures }, episodes);
    const rows = [...plain.matchAll(/<tr><td>(.*?)<\/td>.*?<\/tr>/g)];
    expect(rows.filter(([row]) => row.includes("<svg")).map(([, label]) => label)).toEqual(["success"]);
    expect(plain).not.toContain("Critic and refiner");
    const diagnosis = { "calibration/brier": 0.25, "gain/<b>": Number.NaN };
    const page = renderEpisodes({ title: "t", player: "mine", figures, diagnosis }, episodes);
    expect(page).toContain("<h2>Critic and refiner</h2>");
    expect(page).toContain("<tr><td>calibration/brier</td><td>0.25</td></tr>");
    expect(page).toContain("<tr><td>gain/&lt;b&gt;</td><td>–</td></tr>");
  });

  test("embeds any text without ending the script element", () => {
    const text = fc.oneof(
      fc.string({ unit: "binary" }),
      fc.constantFrom(hostile, "]]>", "<!--<script>", "\u2029"),
    );
    fc.assert(
      fc.property(text, text, (said, message) => {
        const fault = { code: "ERR_SERVICE", message };
        const html = page([episode(0, { outcome: "service-fault", fault }, said)]);
        expect(contents(html, "script")[0]).not.toMatch(/[<>&\u2028\u2029]/);
        const { texts, episodes } = dataOf(html);
        expect(episodes[0].turns[0].action.text).toBe(said);
        expect(texts[episodes[0].opening[1][1]]).toBe(said);
        expect(episodes[0].fault.message).toBe(message);
      }),
    );
  });

  test("contains each episode's result, and stores shared openings once", () => {
    const episodes = [
      episode(0),
      episode(1),
      episode(2, { outcome: "environment-fault" }),
      episode(3, { opening: undefined, turns: [] }),
    ];
    const { texts, episodes: shown } = dataOf(page(episodes));
    expect(texts).toEqual(["The same rules for all.", "hello"]);
    expect(shown.map(({ result }: { result: string }) => result)).toEqual([
      "failed",
      "succeeded",
      "faulty",
      "succeeded",
    ]);
    expect(shown[3]).toMatchObject({ opening: [], turns: [] });
  });
});

const chromium = ["chromium", "chromium-browser", "google-chrome"].find(
  (name) => spawnSync(name, ["--version"]).status === 0,
);
if (chromium === undefined) console.warn("skipped: there is no chromium to open the page of episodes with");

/** The page's document after its script has run; `#id` opens an episode. */
function opened(html: string, hash = ""): string {
  const path = join(root, "page.html");
  writeFileSync(path, html);
  const dump = execFileSync(
    chromium!,
    [
      "--headless",
      "--no-sandbox",
      "--disable-gpu",
      "--virtual-time-budget=2000",
      "--dump-dom",
      `file://${path}${hash}`,
    ],
    { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"], maxBuffer: 2 ** 28 },
  );
  return dump.replace(/<script type="application\/json".*?<\/script>/s, "");
}

describe.skipIf(chromium === undefined)("in a browser", () => {
  test("hostile text is shown as text", () => {
    const html = page([episode(0, {}, hostile), episode(1, { task: hostile })]);
    const document = opened(html, "#episode-0");
    expect(document).toContain("<title>errands, test: nlac</title>");
    expect(document).not.toContain("<img");
    const escaped = hostile.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
    expect(document.split(escaped).length - 1).toBeGreaterThan(3);
  });

  test("an episode is drawn only when it is opened", () => {
    const html = page(Array.from({ length: 1000 }, (_, id) => episode(id)));
    const closed = opened(html);
    expect(closed).toContain(">1000 episodes<");
    expect(closed.match(/<details class="episode"/g)).toHaveLength(1000);
    expect(closed).not.toContain("a thought");
    const document = opened(html, "#episode-12");
    expect(document.match(/a thought/g)).toHaveLength(1);
    expect(document).toContain(">tool error<");
    expect(document).toContain('{\n  "found": [\n    1,\n    2\n  ]\n}');
    expect(document).toMatch(/<option value="task 1">task 1 \(333\)<\/option>/);
  });

  test("among others, held-out episodes are marked; tasks that nobody knows cannot be chosen", () => {
    const served = (episodes: readonly EpisodeRecord[]) => {
      const figures = summarize(episodes.map(figuresOf));
      return opened(renderEpisodes({ title: "t", player: "mine", figures, isServed: true }, episodes));
    };
    const heldOut = episode(1, { split: "test", task: "customer 1" });
    const mixed = served([episode(0, { task: "customer 0", group: "refunds" }), heldOut]);
    expect(mixed.match(/<span class="badge">held out<\/span>/g)).toHaveLength(1);
    expect(mixed).toMatch(/<span class="task">customer 1<\/span><span class="badge">held out</);
    expect(mixed).toContain('<option value="held out">held out (1)</option>');
    expect(mixed).toContain('<option value="refunds">refunds (1)</option>');
    expect(mixed).not.toContain('<option value="customer');
    const alike = served([heldOut]);
    expect(alike).not.toContain('<span class="badge">held out');
    expect(alike).toMatch(/<select id="task"[^>]* hidden="">/);
    expect(alike).toMatch(/<select id="split"[^>]* hidden="">/);
  });

  test("episodes are filtered by outcome, task and text", () => {
    const html = page([
      episode(0, {}, "a Rose is <b>red</b>"),
      episode(1, {}, "violets"),
      episode(2, { outcome: "turn-limit" }, "roses"),
      episode(3),
    ]);
    const script = `
      const set = (id, value, event) => {
        document.getElementById(id).value = value;
        document.getElementById(id).dispatchEvent(new Event(event));
      };
      const seen = [];
      const look = () =>
        seen.push([...document.querySelectorAll(".episode:not([hidden])")].map(({ id }) => Number(id.slice(8))));
      look();
      for (const [id, value] of [["result", "succeeded"], ["outcome", "turn-limit"], ["task", "task 0"]]) {
        set(id, value, "change");
        look();
        set(id, "", "change");
      }
      set("search", " rose ", "input");
      setTimeout(() => {
        look();
        document.title = JSON.stringify(seen);
      }, 500);`;
    const free = html
      .replace(/<meta http-equiv[^>]*>/, "")
      .replace("</body>", `<script>${script}</script></body>`);
    const document = opened(free, "#episode-0");
    expect(document).toContain("<title>[[0,1,2,3],[1,3],[2],[0,3],[0,2]]</title>");
    expect(document).toContain(">2 of 4 episodes<");
    expect(document).toContain("a <mark>Rose</mark> is &lt;b&gt;red");
  });
});
