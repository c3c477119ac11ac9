/**
 * The texts of the office. A reply is composed of `phrases` and single words, so that a model of
 * this world can have one vocabulary entry for each (model.ts).
 */

/** All possible kinds of errand. */
export const kinds = [
  "passport",
  "licence",
  "visa",
  "permit",
  "loan",
  "refund",
  "lease",
  "grant",
  "claim",
  "patent",
  "ballot",
  "pension",
] as const;

/** Things to bring to the desk: the actions. */
export const things = [
  "form",
  "stamp",
  "fee",
  "photo",
  "seal",
  "copy",
  "badge",
  "ticket",
  "letter",
  "key",
  "map",
  "card",
  "scan",
  "vote",
  "oath",
  "pen",
] as const;

/**
 * The parts of composed kinds, such as "nurse's visa for Peru". Each part decides one step, so that
 * the order of an unseen kind can be inferred from others.
 */
export const composedParts = [
  ["visa", "passport", "licence", "permit", "loan"],
  ["nurse", "farmer", "student", "baker", "sailor", "pilot"],
  ["Peru", "Kenya", "Norway"],
] as const;

/** For example "nurse's visa for Peru". */
export function composedKind([document, applicant, place]: readonly string[]): string {
  return `${applicant}'s ${document} for ${place}`;
}

export const rules = [
  "You run errands. For each, the desk at the office takes certain things, one a move and in an order that nobody",
  "tells you beforehand. An errand must be done before its moves run out.",
  "",
  `Each move, bring one thing and name nothing else: ${things.join(", ")}.`,
].join("\n");

/** How the order of a composed kind follows from its parts. */
export const composedRules = [
  rules,
  "The desk takes three things: the document decides the first, the applicant the second, the country the third.",
].join("\n");

/** The fixed parts of all replies. */
export const phrases = {
  newErrand: "A new errand",
  took: "The desk took the ",
  wants: "The desk first wants the ",
  refuses: "The desk shakes its head",
  status: ". [",
  movesLeft: "; moves left: ",
  brought: "; brought: ",
  nothing: "nothing",
  and: ", ",
  statusEnd: "]",
  isDone: ". The errand is done.",
  isLate: ". The office closes.",
  isLost: ". The errand is lost over the ",
  stop: ".",
  // Thoughts of the policy.
  the: "The ",
  after: ", after ",
  // Replies of critics and backups.
  doneIn: ". Done in ",
  late: ". Too late.",
  lost: ". Lost over the ",
  first: "First the ",
  not: "Not the ",
} as const;

/** The desk's reaction to a thing. `refused` does not say what it wants instead. */
export type Event = { kind: "took" | "wants"; thing: string } | { kind: "refused" };

/** How an errand ended: completed, out of moves, or lost by a dead end. */
export type Ending = { kind: "done" } | { kind: "late" } | { kind: "lost"; over: string };

/** How an errand may end, in a prediction; `moves` includes this move. */
export type Prospect = { kind: "done"; moves: number } | Exclude<Ending, { kind: "done" }>;

/** The words of the desk that describe an event. */
export function eventText(event: Event): string {
  if (event.kind === "refused") return phrases.refuses;
  return `${event.kind === "took" ? phrases.took : phrases.wants}${event.thing}`;
}

/** State of an errand. */
export interface Status {
  kind: string;
  movesLeft: number;
  brought: readonly string[];
}

/** The desk's reply, or its opening if there is no event. */
export function deskText(event: Event | undefined, status: Status, ending?: Ending): string {
  const said = event === undefined ? phrases.newErrand : eventText(event);
  if (ending?.kind === "done") return said + phrases.isDone;
  if (ending?.kind === "late") return said + phrases.isLate;
  if (ending?.kind === "lost") return `${said}${phrases.isLost}${ending.over}${phrases.stop}`;
  const brought = status.brought.length === 0 ? phrases.nothing : status.brought.join(phrases.and);
  return [
    said,
    phrases.status,
    status.kind,
    phrases.movesLeft,
    status.movesLeft,
    phrases.brought,
    brought,
    phrases.statusEnd,
  ].join("");
}

/**
 * The thought before bringing a thing: which errand it is, and its progress. The fixed wording lets
 * a small model find what it knows of a state in the same place, as policy and as critic.
 */
export function thoughtText({ kind, brought }: Pick<Status, "kind" | "brought">): string {
  return `${phrases.the}${kind}${phrases.after}${brought.at(-1) ?? phrases.nothing}${phrases.stop}`;
}

/** A description of the future: the desk's next reaction, and how the errand ends. */
export function futureText(event: Event, prospect: Prospect): string {
  const said = eventText(event);
  if (prospect.kind === "late") return said + phrases.late;
  const [phrase, what] =
    prospect.kind === "done" ? [phrases.doneIn, prospect.moves] : [phrases.lost, prospect.over];
  return `${said}${phrase}${what}${phrases.stop}`;
}

/**
 * The end that such a description predicts: 1 for a completed errand, 0 for another end; undefined
 * for neither or both.
 */
export function foretoldSuccess(future: string): number | undefined {
  const done = future.includes(phrases.doneIn);
  const failed = future.includes(phrases.late) || future.includes(phrases.lost);
  return done === failed ? undefined : Number(done);
}

/** The thing that the desk took or wants according to its answer; undefined if it names neither. */
export function thingIn(answer: string): string | undefined {
  return [phrases.took, phrases.wants].flatMap((words) =>
    things.filter((thing) => answer.startsWith(words + thing)),
  )[0];
}

/** The dead end named at the end of an errand, if any. */
export function deadEndIn(answer: string): string | undefined {
  return things.find((thing) => answer.endsWith(`${phrases.isLost}${thing}${phrases.stop}`));
}

/**
 * Whether the desk's answer matches the next event of a description of the future: 1 or 0;
 * undefined for other texts.
 */
export function eventAgreement(future: string, answer: string): number | undefined {
  const [foreseen, seen] = [eventIn(future), eventIn(answer)];
  return foreseen === undefined || seen === undefined ? undefined : Number(foreseen === seen);
}

/** The words at the beginning of `text` that describe an event. */
function eventIn(text: string): string | undefined {
  const events: Event[] = things.flatMap((thing) => [
    { kind: "took", thing },
    { kind: "wants", thing },
  ]);
  return [...events, { kind: "refused" } as const].map(eventText).find((words) => text.startsWith(words));
}

/** One sentence on what would have been better. */
export function adviceText(kind: "first" | "not", thing: string): string {
  return `${phrases[kind]}${thing}${phrases.stop}`;
}
