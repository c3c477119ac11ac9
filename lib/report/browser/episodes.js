/**
 * Runs in the episodes page: draws an episode when it is opened, and filters the list. Text is
 * inserted as text, never as markup. page.ts embeds this file unchanged.
 *
 * @typedef {{ role: string, content: string }} Message
 * @typedef {{
 *   text: string, malformed?: string, reward: number, info: Record<string, unknown>,
 *   observation: Message[],
 *   action?: { text: string, thought?: string, tool?: { name: string, arguments: unknown } },
 * }} Turn
 * @typedef {{
 *   id: number, name?: string, task?: string, split: string, seed?: number, outcome: string,
 *   result: string, reward: number,
 *   fault?: { code: string, message: string },
 *   opening: [role: string, text: number][], turns: Turn[],
 * }} Episode
 * @typedef {{ episode: Episode, element: HTMLDetailsElement, contents?: string }} Row
 */

/** @type {(id: string) => any} */
const byId = (id) => document.getElementById(id);

/** @type {{ texts: string[], episodes: Episode[] }} */
const { texts, episodes } = JSON.parse(byId("data").textContent);
/** @type {HTMLElement} */
const list = byId("episodes");
/** @type {HTMLElement} */
const shown = byId("shown");
/** @type {HTMLInputElement} */
const search = byId("search");
/** @type {HTMLSelectElement[]} */
const choices = ["result", "outcome", "task", "split"].map(byId);
/** Whether some of the episodes are held out and others are not. */
const isMixed = new Set(episodes.map(({ split }) => split)).size > 1;
let query = "";

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {string} kind the class
 * @param {(Node | string)[]} content
 * @returns {HTMLElementTagNameMap[Tag]}
 */
function make(tag, kind, ...content) {
  const element = document.createElement(tag);
  if (kind) element.className = kind;
  element.append(...content);
  return element;
}

/** The text, with matches of the query marked. @param {string} text */
function marked(text) {
  const lower = text.toLowerCase();
  // In a few alphabets lower case has another length: positions would be wrong.
  if (query === "" || lower.length !== text.length) return [text];
  const parts = [];
  let from = 0;
  for (let at = lower.indexOf(query); at >= 0; at = lower.indexOf(query, from)) {
    parts.push(text.slice(from, at), make("mark", "", text.slice(at, at + query.length)));
    from = at + query.length;
  }
  return [...parts, text.slice(from)];
}

/** @param {number} value */
function figure(value) {
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(3)));
}

/** JSON indented; other text unchanged. @param {string} text */
function laidOut(text) {
  if (!/^\s*[{[]/.test(text)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** @param {string} kind @param {string} label @param {string} text */
function block(kind, label, text) {
  return make("div", `block ${kind}`, make("div", "label", label), make("div", "text", ...marked(text)));
}

/** @param {Message} message */
function message({ role, content }) {
  if (role === "tool") return block("tool code", "tool", laidOut(content));
  if (role !== "system") return block(role, role, content);
  const system = make("details", "block system", make("summary", "label", "system"));
  system.append(make("div", "text", ...marked(content)));
  system.open = query !== "" && content.toLowerCase().includes(query);
  return system;
}

/** @param {Turn} turn @param {number} number */
function turnPart(turn, number) {
  const title = make("h3", "", `Turn ${number}`);
  if (turn.reward !== 0) title.append(make("span", "badge", `reward ${figure(turn.reward)}`));
  if (turn.info.toolError === true) title.append(make("span", "badge failed", "tool error"));
  const part = make("section", "", title);
  const { action } = turn;
  if (!action) part.append(block("fault", `unreadable: ${turn.malformed}`, turn.text));
  else {
    if (action.thought) part.append(block("agent thought", "thought", action.thought));
    if (action.tool) {
      const given = JSON.stringify(action.tool.arguments, null, 2);
      part.append(block("agent code", `calls ${action.tool.name}`, given));
    } else part.append(block("agent", "says", action.text));
  }
  part.append(...turn.observation.map(message));
  const more = make("details", "more", make("summary", "faint", "as written"));
  more.append(make("div", "text code", ...marked(turn.text)));
  if (Object.keys(turn.info).length > 0)
    more.append(
      make("div", "faint", "info"),
      make("div", "text code", ...marked(JSON.stringify(turn.info, null, 2))),
    );
  part.append(more);
  return part;
}

/** The client's name of a served episode, otherwise its task. @param {Episode} episode */
function nameOf({ name, task = "" }) {
  return name ?? task;
}

/** @param {Episode} episode */
function body(episode) {
  const seed = episode.seed === undefined ? "" : `seed ${episode.seed}, `;
  const facts = `${seed}ended by ${episode.outcome}`;
  const opening = episode.opening.map(([role, text]) => message({ role, content: texts[text] ?? "" }));
  const turns = episode.turns.map((turn, i) => turnPart(turn, i + 1));
  const whole = make("div", "body", make("p", "faint", facts), ...opening, ...turns);
  if (episode.fault) whole.append(block("fault", episode.fault.code, episode.fault.message));
  return whole;
}

/** @param {Row} row */
function draw(row) {
  row.element.querySelector(".body")?.remove();
  if (row.element.open) row.element.append(body(row.episode));
}

const rows = episodes.map((episode) => {
  const summary = make(
    "summary",
    "",
    make("span", "number", `#${episode.id}`),
    make("span", "task", nameOf(episode)),
    ...(isMixed && episode.split === "held out" ? [make("span", "badge", "held out")] : []),
    make("span", `badge ${episode.result}`, episode.result),
    make("span", "facts faint", episode.turns.length + (episode.turns.length === 1 ? " turn" : " turns")),
    make("span", "facts faint", `reward ${figure(episode.reward)}`),
  );
  const element = make("details", "episode", summary);
  element.id = `episode-${episode.id}`;
  /** @type {Row} */
  const row = { episode, element };
  element.addEventListener("toggle", () => draw(row));
  return row;
});

/**
 * All text of an episode in lower case; cached, because every keystroke searches it.
 * @param {Row} row
 */
function contents(row) {
  const { episode } = row;
  row.contents ??= [
    nameOf(episode),
    ...episode.opening.map(([, text]) => texts[text]),
    ...episode.turns.flatMap((turn) => [turn.text, ...turn.observation.map(({ content }) => content)]),
    ...(episode.fault ? [episode.fault.message] : []),
  ]
    .join("\n")
    .toLowerCase();
  return row.contents;
}

/**
 * The property that a select element is named after; undefined if it is unknown.
 * @param {Episode} episode
 * @param {string} id
 */
function facet(episode, id) {
  return episode[/** @type {"result" | "outcome" | "task" | "split"} */ (id)];
}

function filter() {
  query = search.value.trim().toLowerCase();
  let count = 0;
  for (const row of rows) {
    const fits = choices.every(({ id, value }) => value === "" || facet(row.episode, id) === value);
    const visible = fits && (query === "" || contents(row).includes(query));
    row.element.hidden = !visible;
    if (visible) count++;
    if (visible && row.element.open) draw(row);
  }
  const all = rows.length + (rows.length === 1 ? " episode" : " episodes");
  shown.textContent = count === rows.length ? all : `${count} of ${all}`;
}

for (const select of choices) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const episode of episodes) {
    const value = facet(episode, select.id);
    if (value === undefined) continue;
    counts.set(value, (counts.get(value) ?? 0) + 1);
  }
  for (const [value, count] of [...counts].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }))) {
    const option = make("option", "", `${value} (${count})`);
    option.value = value;
    select.append(option);
  }
  select.hidden = counts.size === 0 || (select.id === "split" && !isMixed);
  select.addEventListener("change", filter);
}
/** @type {number | undefined} */
let waiting;
search.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(filter, 150);
});
list.append(...rows.map(({ element }) => element));
filter();

function openNamed() {
  const named = document.getElementById(location.hash.slice(1));
  if (!(named instanceof HTMLDetailsElement)) return;
  named.open = true;
  named.scrollIntoView();
}
addEventListener("hashchange", openNamed);
openNamed();
