import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import type { Browser, Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { exportDash } from "../../lib/dash/export.ts";
import { type Assets, readAssets } from "../../lib/dash/page.ts";
import { DashRuns } from "../../lib/dash/runs.ts";
import { type DashServer, serveDash } from "../../lib/dash/server.ts";
import { RecordWriter } from "../../lib/files/records.ts";
import { hasBrowser, openBrowser, openPage } from "../support/browser.ts";
import {
  drawsOf,
  episodeOf,
  recipeOf,
  rowsOf,
  sampleOf,
  statusOf,
  wholeRun,
  writeRun,
} from "../support/recorded-run.ts";

const temporary = (name: string) => mkdtempSync(join(tmpdir(), `nlac-${name}-`));
let assets: Assets;

beforeAll(() => {
  const directory = temporary("assets");
  execFileSync(process.execPath, ["scripts/bundle-dash.mjs", directory]);
  assets = readAssets(directory);
});

test("script and styles have less than 50 KB compressed", () => {
  // The program's own deflate: Node's zlib is tuned for speed and compresses a little less.
  const compressed = (input: string) => execFileSync("gzip", ["-9", "-c"], { input }).length;
  expect(compressed(assets.script) + compressed(assets.styles)).toBeLessThan(50_000);
});

test("a missing bundle is named", () => {
  expect(() => readAssets(temporary("none"))).toThrow(/npm run build/);
});

const screens: Record<string, string> = {
  "view=overview": "iteration 4 of 4",
  "view=metrics&run=a": "loss/l1",
  "view=episodes&run=a&n=2": "The lamp heard switch 2.",
  "view=episodes&of=evaluations&run=a&n=1": "press 1 after 3",
  "view=critiques&run=a&n=3": "Critic on the same (s, a)",
  "view=history&run=a&episode=0&turn=0": "4 draws",
  "view=probes&run=a&n=0": "after 2 updates",
  "view=compare": "Interquartile mean",
};

describe.skipIf(!hasBrowser)("in a browser", () => {
  let browser: Browser;
  let server: DashServer;
  const root = temporary("runs");

  beforeAll(async () => {
    writeRun(join(root, "a"), wholeRun());
    writeRun(join(root, "b"), {
      ...wholeRun(),
      recipe: { ...recipeOf(1, { batchSize: 4 }), description: "With a larger batch." },
      status: statusOf("finished"),
    });
    const runs = new DashRuns([root]);
    await runs.poll();
    server = await serveDash(runs, { assets, pollMs: 30 });
    browser = await openBrowser();
  });
  afterAll(async () => {
    await browser?.close();
    await server?.close();
  });

  const open = async (hash: string, viewport?: { width: number; height: number }) => {
    const opened = await openPage(browser, viewport);
    await opened.page.goto(`${server.link}&${hash}`);
    return opened;
  };
  const textOf = (page: Page) => page.innerText("main");

  test.each(Object.entries(screens))("%s shows what it should, and asks nobody else", async (hash, text) => {
    const { page, faults, requests } = await open(hash);
    await page.getByText(text).first().waitFor();
    expect(faults).toEqual([]);
    const origin = new URL(server.link).origin;
    expect(requests.filter((url) => !url.startsWith(origin) && !url.startsWith("data:"))).toEqual([]);
    await page.close();
  });

  test.each(Object.keys(screens))("%s fits into 390 pixels", async (hash) => {
    const { page, faults } = await open(hash, { width: 390, height: 800 });
    await page.getByText(screens[hash]!).first().waitFor();
    expect(await page.evaluate("document.documentElement.scrollWidth")).toBeLessThanOrEqual(390);
    const main = page.locator("main");
    expect(await main.evaluate((element) => element.scrollWidth - element.clientWidth)).toBe(0);
    // The screens are one line.
    expect(await page.locator("nav").evaluate((nav) => nav.clientHeight)).toBeLessThan(36);
    expect(faults).toEqual([]);
    await page.close();
  });

  test("screens can be left for each other", async () => {
    const { page, faults } = await open("view=episodes&run=a&n=2");
    for (const screen of ["Critiques", "Metrics", "Episodes", "Overview", "Critiques", "Compare"]) {
      await page.getByRole("link", { name: screen, exact: true }).click();
      await page.locator("nav a[aria-current]", { hasText: screen }).waitFor();
      await page.waitForTimeout(200); // for what the screen that was left still does
    }
    expect(faults).toEqual([]);
    await page.close();
  });

  test("the token under the pointer is explained by both models", async () => {
    const { page } = await open("view=critiques&run=a&n=3");
    await page.locator(".token", { hasText: "It " }).first().hover();
    await page.getByText("Token 2 of 6").waitFor();
    await page.locator(".token", { hasText: "lights" }).first().hover();
    await page.getByText("Token 3 of 6").waitFor();
    const side = await page.innerText(".side");
    expect(side).toContain("2.4 nats");
    expect(side).toMatch(/θ, which did not\s+14 %/);
    expect(side).toContain('"burns"');
    // The hottest token has the strongest colour.
    const colours = await page
      .locator(".tokens")
      .first()
      .locator(".token")
      .evaluateAll((all) =>
        all.map((element) => (element as { style?: { backgroundColor: string } }).style!.backgroundColor),
      );
    expect(colours[2]).toContain("0.8");
    expect(colours[0]).toContain("0)");
    // Attempt and refinement differ in one word.
    expect(await page.locator(".diff del").innerText()).toBe("button");
    expect(await page.locator(".diff ins").innerText()).toBe("switch");
    await page.close();
  });

  test("filters, keys and the link", async () => {
    const { page } = await open("view=critiques&run=a");
    await page.getByText("4 of 4 samples").waitFor();
    // By L1: the sample of the last update is first. Updates count from 1, as the rows of metrics.
    expect(await page.locator(".row").first().innerText()).toContain("update 4");
    await page.getByRole("link", { name: "unchanged" }).click();
    await page.getByText("1 of 4 samples").waitFor();
    await page.getByRole("link", { name: "unchanged" }).click();
    await page.getByText("4 of 4 samples").waitFor();
    await page.keyboard.press("j");
    await page.getByText("drawn by update 3").waitFor();
    expect(page.url()).toContain("n=2");
    await page.keyboard.press("k");
    await page.getByText("drawn by update 4").waitFor();
    await page.keyboard.press("/");
    expect(await page.evaluate("document.activeElement.type")).toBe("search");
    // The same link shows the same screen.
    const { page: second } = await openPage(browser);
    await second.goto(page.url());
    await second.getByText("drawn by update 4").waitFor();
    await second.close();
    await page.close();
  });

  test("y copies the link, and [ goes back in the time of the episodes", async () => {
    const { page } = await open("view=episodes&run=a");
    await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
    await page.getByText("8 of 8 episodes").waitFor();
    await page.keyboard.press("[");
    await page.getByText(/^[1-7] of 8 episodes/).waitFor();
    expect(page.url()).toContain("until=");
    await page.keyboard.press("y");
    await page.getByText("Link copied").waitFor();
    expect(await page.evaluate("navigator.clipboard.readText()")).toBe(page.url());
    await page.keyboard.press("]");
    await page.getByText("8 of 8 episodes").waitFor();
    await page.close();
  });

  test("a key pressed as soon as a screen appears is not lost", async () => {
    const { page } = await openPage(browser);
    // Runs after the render that shows the text, and before the next frame.
    await page.addInitScript(`new MutationObserver((_, observer) => {
      if (!document.body?.innerText.includes("after 2 updates (2 of 2")) return;
      observer.disconnect();
      document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "[", bubbles: true }));
    }).observe(document, { childList: true, subtree: true, characterData: true })`);
    await page.goto(`${server.link}&view=probes&run=a`);
    await page.getByText("after 0 updates (1 of 2").waitFor();
    await page.close();
  });

  test("probes move in time with [ and ]", async () => {
    const { page } = await open("view=probes&run=a");
    await page.getByText("after 2 updates (2 of 2").waitFor();
    await page.keyboard.press("[");
    await page.getByText("after 0 updates (1 of 2").waitFor();
    await page.close();
  });

  test("runs are laid over each other, with the fields in which they differ", async () => {
    const { page } = await open(`view=metrics&run=a&with=b&filter=${encodeURIComponent("^loss/")}`);
    await page.getByText("config.batchSize").waitFor();
    await page.locator(".panel canvas").waitFor();
    expect(await page.locator(".panel").count()).toBe(1);
    // Texts about a run are no setting.
    expect(await page.getByRole("cell", { name: "description" }).count()).toBe(0);
    await page.fill("input[type=search]", "[");
    await page.locator("input.bad").waitFor();
    await page.close();
  });

  test("another run shows its own metrics only, and one without samples says so", async () => {
    const metrics = [{ step: 1, time: 1, values: { "loss/policy": 0.5 } }];
    writeRun(join(root, "other"), { metrics, recipe: recipeOf(0), status: statusOf("finished") });
    const { page, faults } = await open("view=metrics&run=a");
    const names = () => page.locator(".panel h3").allInnerTexts();
    await page.locator(".panel h3", { hasText: "loss/l1" }).waitFor();
    await page.selectOption("select[aria-label=run]", "other");
    await page.locator(".panel h3", { hasText: "loss/policy" }).waitFor();
    expect((await names()).map((name) => name.split("\n")[0])).toEqual(["loss/policy"]);
    writeRun(join(root, "young"), { recipe: recipeOf(0), status: statusOf("running") });
    await page.locator("select[aria-label=run] option", { hasText: "young" }).waitFor({ state: "attached" });
    await page.selectOption("select[aria-label=run]", "young");
    await page.getByText("There are no metrics yet.").waitFor();
    await page.fill("input[type=search]", "loss");
    await page.getByText("No metric matches.").waitFor();
    await page.getByRole("link", { name: "Critiques", exact: true }).click();
    const note = page.getByText("There are no samples.");
    await note.waitFor();
    expect((await note.boundingBox())!.height).toBeGreaterThan(50); // with room around the text
    expect(faults).toEqual([]);
    await page.close();
  });

  test("an evaluation lists its own episodes, and [ shows the same one in the evaluation before", async () => {
    const { page } = await open("view=episodes&run=a&n=2&result=faulty");
    await page.getByText("Episodes of evaluations").click();
    await page.locator(".row").getByText("#1").click();
    await page.getByText("press 1 after 3", { exact: true }).waitFor();
    await page.getByText("2 of 2 episodes").waitFor();
    expect(await page.locator(".row .succeeded").count()).toBe(2);
    expect(await page.getByText("history").count()).toBe(0); // no update draws its turns
    await page.keyboard.press("[");
    await page.getByText("press 1 after 0", { exact: true }).waitFor();
    await page.getByText("after 0 updates", { exact: true }).waitFor();
    expect(await page.locator(".row .failed").count()).toBe(2);
    await page.close();
  });

  test("a selected part of the x axis is in the link, for all panels", async () => {
    const { page } = await open("view=metrics&run=a");
    const plot = page.locator(".panel .u-over").first();
    await plot.waitFor(); // until it has its size
    const { x, y, width, height } = (await plot.boundingBox())!;
    await page.mouse.move(x + width * 0.25, y + height / 2);
    await page.mouse.down();
    await page.mouse.move(x + width * 0.75, y + height / 2, { steps: 4 });
    await page.mouse.up();
    await page.getByRole("button", { name: "show all updates" }).waitFor();
    const [low, high] = new URLSearchParams(page.url()).get("zoom")!.split(",").map(Number);
    // Of four updates, 0 to 3.
    expect(low).toBeCloseTo(0.75, 1);
    expect(high).toBeCloseTo(2.25, 1);
    await page.getByRole("button", { name: "show all updates" }).click();
    await page.getByRole("button", { name: "show all updates" }).waitFor({ state: "detached" });
    expect(page.url()).not.toContain("zoom");
    await page.close();
  });

  test("a panel shows where the pointer is, and each panel its value there", async () => {
    const values = (step: number) => ({
      "loss/l1": step,
      ...(step % 4 === 0 && { "eval/success": step / 8 }),
    });
    writeRun(join(root, "pointed"), {
      metrics: Array.from({ length: 9 }, (_, step) => ({ step, time: step, values: values(step) })),
    });
    const { page } = await open("view=metrics&run=pointed");
    const plots = page.locator(".panel .u-over");
    await plots.nth(1).waitFor();
    expect(await page.locator(".panel").count()).toBe(2);
    const read = () => page.locator(".panel h3 b").allInnerTexts();
    expect(await read()).toEqual(["1", "8"]);
    const { x, y, width, height } = (await plots.first().boundingBox())!;
    // Nearer to the evaluation after 8 updates, which was not done yet.
    await page.mouse.move(x + (width * 6.5) / 8, y + height / 2);
    await page.locator(".at", { hasText: "updates 6" }).waitFor();
    expect(await read()).toEqual(["0.5", "6"]);
    expect(await page.locator(".at:visible").count()).toBe(1);
    // A little before a point is at the point.
    await page.mouse.move(x + width / 2 - 3, y + height / 2);
    await page.locator(".at", { hasText: "updates 4" }).waitFor();
    expect(await read()).toEqual(["0.5", "4"]);
    await page.mouse.move(0, 0);
    await page.locator(".at:visible").waitFor({ state: "detached" });
    expect(await read()).toEqual(["1", "8"]);
    await page.close();
  });

  test("rows that arrive during a drag leave the selected part in sight", async () => {
    writeRun(join(root, "dragged"), { metrics: rowsOf(4, () => 0.5) });
    const { page } = await open("view=metrics&run=dragged");
    const plot = page.locator(".panel .u-over").first();
    await plot.waitFor();
    const { x, y, width, height } = (await plot.boundingBox())!;
    await page.mouse.move(x + width * 0.25, y + height / 2);
    await page.mouse.down();
    await page.mouse.move(x + width * 0.5, y + height / 2, { steps: 4 });
    const metrics = new RecordWriter(join(root, "dragged", "metrics.jsonl"));
    metrics.append({ step: 4, time: 1_767_225_700, values: { "loss/l1": 7, "later/one": 1 } });
    metrics.close();
    await page.locator(".panel h3", { hasText: "later/one" }).waitFor();
    const selected = await plot.locator(".u-select").boundingBox();
    expect(selected!.width).toBeGreaterThan(width / 8);
    await page.mouse.move(x + width * 0.75, y + height / 2, { steps: 4 });
    await page.mouse.up();
    await page.getByRole("button", { name: "show all updates" }).waitFor();
    await page.close();
  });

  test("of several running ones, neither the order nor the run that is shown changes when they write", async () => {
    const from = temporary("several");
    const now = Date.now() / 1000;
    const beat = (name: string, done: number) =>
      writeRun(join(from, name), { ...wholeRun(), status: { ...statusOf("running", now + done), done } });
    beat("one", 1);
    beat("two", 2);
    const several = new DashRuns([from]);
    await several.poll();
    const served = await serveDash(several, { assets, pollMs: 30 });
    const { page } = await openPage(browser);
    await page.goto(`${served.link}&view=overview`);
    const names = () => page.locator(".card h2").allInnerTexts();
    await page.getByText("update 2 / 8").waitFor();
    const before = await names();
    await page.getByRole("link", { name: "Episodes", exact: true }).click();
    const shown = await page.locator("select[aria-label=run]").inputValue();
    beat(shown === "one" ? "two" : "one", 3);
    await page.getByRole("link", { name: "Overview", exact: true }).click();
    await page.getByText("update 3 / 8").waitFor();
    expect(await names()).toEqual(before);
    await page.getByRole("link", { name: "Episodes", exact: true }).click();
    expect(await page.locator("select[aria-label=run]").inputValue()).toBe(shown);
    await page.close();
    await served.close();
  });

  test("a link to a run that does not exist shows no other run", async () => {
    const { page } = await open("view=episodes&run=removed&n=2");
    await page.getByText('There is no run "removed".').waitFor();
    expect(await page.locator(".row").count()).toBe(0);
    await page.close();
  });

  test("an answer is shown although the run has changed meanwhile", async () => {
    const path = join(root, "busy");
    writeRun(path, { episodes: [episodeOf(0)], metrics: rowsOf(1, () => 0) });
    const metrics = new RecordWriter(join(path, "metrics.jsonl"));
    const { page } = await openPage(browser);
    let asked = 0;
    const aborted: string[] = [];
    page.on("requestfailed", (request) => aborted.push(request.url()));
    await page.route("**/api/episodes?*", async (route) => {
      // The first answer takes until three later versions of the run have been sent.
      if (asked++ === 0) {
        for (let step = 1; step <= 3; step++) {
          const changed = page.waitForResponse((response) => response.url().includes("/api/runs"));
          metrics.append({ step, time: step, values: { "loss/l1": 1 } });
          await Promise.race([changed, page.waitForTimeout(500)]);
        }
      }
      await route.continue();
    });
    await page.goto(`${server.link}&view=episodes&run=busy`);
    await page.getByText("1 of 1 episodes").waitFor();
    expect(aborted.filter((url) => url.includes("/api/episodes?"))).toEqual([]);
    metrics.close();
    await page.close();
  });

  test("of a served run, held-out episodes are marked, and tasks are those of leases and groups", async () => {
    const leased = (id: number) => `task-${id}-8ad0897b-8e3d-49c8-89cc-3e20261ec1f6`;
    const served = join(root, "served");
    writeRun(served, wholeRun());
    const records = new RecordWriter(join(served, "episodes.jsonl"));
    for (const [id, fields] of [
      { task: leased(7) },
      { task: leased(7), split: "test" as const },
      { task: "customer 1", group: "refunds" },
      { task: "customer 2", parent: "customer 1" },
    ].entries())
      records.append({ ...episodeOf(id), ...fields, time: 1_767_225_600_000 + id });
    records.close();
    const { page } = await open("view=episodes&run=served&n=1");
    await page.getByText("held out: nothing trains on it").waitFor();
    expect(await page.locator("article").getByText("history").count()).toBe(0);
    expect(await page.innerText("article")).not.toContain("seed");
    expect(await page.locator(".row", { hasText: "held out" }).allInnerTexts()).toEqual([
      expect.stringContaining("#1"),
    ]);
    const task = page.locator("select[aria-label=task]");
    expect(await task.locator("option").allInnerTexts()).toEqual([
      "any task",
      "task 7",
      "held-out task 7",
      "refunds",
    ]);
    await task.selectOption("refunds");
    await page.getByText("1 of 4 episodes").waitFor();
    expect(await page.locator(".row").innerText()).toContain("customer 1");
    await task.selectOption("");
    await page.selectOption("select[aria-label=split]", "training");
    await page.getByText("3 of 4 episodes").waitFor();
    await page.locator(".row", { hasText: "#3" }).click();
    await page.getByText("worked for customer 1").waitFor();
    expect(await page.locator("article").getByText("history").count()).toBe(2);
    // Another run has other tasks, and no split to choose.
    await task.selectOption("task 7");
    await page.getByText("1 of 4 episodes").waitFor();
    await page.selectOption("select[aria-label=run]", "a");
    await page.getByText("8 of 8 episodes").waitFor();
    expect(await page.locator("select[aria-label=split]").count()).toBe(0);
    await page.close();
  });

  test("of more groups than colours, the others are dashed", async () => {
    const from = temporary("many-groups");
    for (let i = 0; i < 10; i++)
      writeRun(join(from, `run-${i}`), { ...wholeRun(), recipe: recipeOf(0, { batchSize: i + 1 }) });
    const groups = new DashRuns([from]);
    await groups.poll();
    const served = await serveDash(groups, { assets });
    const { page } = await openPage(browser);
    await page.goto(`${served.link}&view=compare`);
    await page.getByText("Interquartile mean").waitFor();
    const marks = await page
      .locator("td > i")
      .evaluateAll((all) =>
        all.map(
          (mark) =>
            `${(mark as unknown as { style: { background: string } }).style.background} ${mark.className}`,
        ),
      );
    expect(new Set(marks).size).toBe(10);
    expect(marks.filter((mark) => mark.endsWith("dashed"))).toHaveLength(2);
    await page.close();
    await served.close();
  });

  test("figures that were not recorded can be asked of a checkpoint, and back", async () => {
    const sample = sampleOf(0, 0, 0.5);
    delete sample.tokens!.target!.best;
    writeRun(join(root, "brief"), { ...wholeRun(), samples: [sample] });
    const { page } = await open("view=critiques&run=brief&n=0");
    await page.getByText("The most probable tokens are recorded for probes").waitFor();
    await page.getByRole("button", { name: "compute them from the newest checkpoint" }).click();
    // This run has no checkpoint.
    await page.locator(".side .warning").waitFor();
    expect(page.url()).toContain("computed=0");
    await page.getByRole("button", { name: "show the recorded figures" }).click();
    await page.getByRole("button", { name: "compute them from the newest checkpoint" }).waitFor();
    await page.close();
  });

  test("what is recorded while the page is open appears", async () => {
    const live = join(root, "live");
    const { page, faults } = await open("view=overview");
    await page.getByText("iteration 4 of 4").first().waitFor();
    writeRun(live, { metrics: rowsOf(1, () => 0.25), episodes: [episodeOf(0)], status: statusOf("running") });
    await page.getByRole("link", { name: "live" }).waitFor();
    const metrics = new RecordWriter(join(live, "metrics.jsonl"));
    metrics.append(rowsOf(2, () => 0.875)[1]);
    metrics.close();
    await page.locator(".big", { hasText: "0.88" }).waitFor();
    const samples = new RecordWriter(join(live, "samples.jsonl"));
    samples.append(sampleOf(7, 0, 0.5));
    samples.close();
    await page.getByText("1 sample", { exact: true }).waitFor();
    expect(faults).toEqual([]);
    await page.close();
  });

  test("a hostile transcript stays text", async () => {
    const { page, faults, requests } = await open("view=episodes&run=a&n=1");
    await page.getByText("<img src=x onerror=").first().waitFor();
    const text = await textOf(page);
    expect(text).toContain("⟨U+202E⟩");
    expect(text).toContain("⟨U+0000⟩");
    expect(text).not.toContain("\u202e");
    expect(await page.title()).toBe("a: Episodes · nlac dash");
    expect(await page.locator("main img").count()).toBe(0);
    expect(requests.some((url) => url.endsWith("/x"))).toBe(false);
    expect(faults).toEqual([]);
    // Even a script in the page could not turn the text into markup.
    const refused = await page.evaluate(
      "(() => { try { document.body.innerHTML = '<b>x</b>'; return false } catch { return true } })()",
    );
    expect(refused).toBe(true);
    await page.close();
  });

  test("names of tasks and tools are text, too, and any task can be chosen", async () => {
    const task = "two  spaces \u202eand\u202c more";
    const [episode, other] = [episodeOf(0), episodeOf(1)];
    episode.turns[0]!.action = { text: "", tool: { name: "rm\u202e", arguments: {} } };
    episode.turns[1] = { ...episode.turns[1]!, malformed: "no tool \u202e" };
    writeRun(join(root, "odd"), { ...wholeRun(), episodes: [{ ...episode, task }, other] });
    const { page } = await open("view=episodes&run=odd&n=0");
    await page.getByText("calls rm⟨U+202E⟩").waitFor();
    await page.selectOption("select[aria-label=task]", task);
    await page.getByText("1 of 2 episodes").waitFor();
    const text = await textOf(page);
    expect(text).toContain("two spaces ⟨U+202E⟩");
    expect(text).toContain("unreadable: no tool ⟨U+202E⟩");
    expect(text).not.toContain("\u202e");
    await page.close();
  });

  test("a sample of another method shows what was trained on, and its figures", async () => {
    const facts = { reward: 1, advantage: -0.5, refinement: true };
    writeRun(join(root, "others"), {
      ...wholeRun(),
      samples: [
        { update: 0, trajectory: 0, turn: 1, texts: { chosen: "the better", rejected: "the worse" }, facts },
        { update: 1, trajectory: 1, texts: { episode: "first<end>", "episode 2": "second<end>" }, facts },
        // As Critique-GRPO's refinement of a played action.
        { update: 2, trajectory: 2, turn: 0, texts: { episode: "refined<end>" }, facts },
      ],
    });
    const { page } = await open("view=critiques&run=others&n=0");
    await page.getByText("the worse").waitFor();
    expect(await page.locator(".row .preview").allInnerTexts()).toEqual([
      "the better",
      "first<end>",
      "refined<end>",
    ]);
    const first = await textOf(page);
    expect(first).toMatch(/Trained on: chosen\s+the better\s+Trained on: rejected\s+the worse/);
    expect(first).toContain("reward 1 · advantage -0.5");
    await page.locator(".row").nth(1).click();
    await page.getByText("second<end>").waitFor();
    expect(await textOf(page)).not.toContain("Action a");
    await page.locator(".row").nth(2).click();
    await page.locator(".part").getByText("refined<end>").waitFor();
    expect(await textOf(page)).toMatch(/Action a\s+switch 2\s/);
    await page.close();
  });

  test("a huge text is shown in part at first", async () => {
    writeRun(join(root, "huge"), { ...wholeRun(), episodes: [episodeOf(0, "x y ".repeat(500_000))] });
    const { page } = await open("view=episodes&run=huge&n=0");
    await page.getByText("show all 2,000,000 characters").first().waitFor();
    expect((await textOf(page)).length).toBeLessThan(50_000);
    await page.close();
  });

  test("of many episodes, only those in sight are drawn", async () => {
    const count = 100_000;
    const many = join(root, "many");
    writeRun(many, { ...wholeRun(), episodes: Array.from({ length: count }, (_, id) => episodeOf(id)) });
    const { page } = await open("view=episodes&run=many");
    await page.getByText("100,000 of 100,000 episodes").waitFor();
    expect(await page.locator(".row").count()).toBeLessThan(100);
    expect(await page.locator(".row").first().innerText()).toContain(`#${count - 1}`);
    await page.locator(".longlist").evaluate((list) => {
      list.scrollTop = list.scrollHeight;
    });
    await page.locator(".row b", { hasText: /^#0$/ }).waitFor();
    await page.selectOption("select[aria-label=task]", "lamp-1");
    await page.getByText("33,333 of 100,000 episodes").waitFor();
    await page.close();
  });

  test("without its token a page shows nothing but the reason", async () => {
    const { page } = await openPage(browser);
    await page.goto(`${new URL(server.link).origin}/#view=episodes`);
    await page.getByText("The token is missing or wrong").waitFor();
    expect(await textOf(page)).not.toContain("lamp");
    await page.close();
  });

  test("an exported page is one file that works without a server, and loads nothing", async () => {
    const from = temporary("export-from");
    writeRun(join(from, "a"), { ...wholeRun(), draws: [drawsOf(0, 0, 1)] });
    const out = join(temporary("export"), "page");
    const limits = { maxEpisodes: 4, maxSamples: 2 };
    const path = await exportDash(new DashRuns([from]), out, { assets, ...limits });
    expect(readFileSync(path, "utf8").split("</script>")).toHaveLength(3);
    expect(statSync(path).size).toBeLessThan(2 ** 20);
    for (const [hash, text] of Object.entries({
      "view=overview": "iteration 4 of 4",
      "view=metrics&run=a": "loss/l1",
      "view=episodes&run=a&n=7": "<img src=x",
      "view=critiques&run=a": "Critic on the same (s, a)",
      "view=history&run=a&episode=3&turn=0": "0 draws",
      "view=probes&run=a": "after 2 updates",
      "view=compare": "Interquartile mean",
    })) {
      const { page, faults, requests } = await openPage(browser);
      await page.goto(`${pathToFileURL(path)}#${hash}`);
      await page.getByText(text).first().waitFor();
      expect(faults).toEqual([]);
      expect(requests.filter((url) => !url.startsWith("file:") && !url.startsWith("data:"))).toEqual([]);
      await page.close();
    }
  });
});
