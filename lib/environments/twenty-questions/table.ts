/** The table of answers: every object's value of every attribute, computed once from objects.ts. */

import { NlacError } from "../../base/errors.ts";
import {
  type Answer,
  type Attribute,
  type AttributeName,
  attributeNames,
  attributes,
  colours,
  sameSize,
  sizeAttributes,
} from "./attributes.ts";
import { furtherGroups } from "./further-objects.ts";
import { Names } from "./names.ts";
import { classes, groups } from "./objects.ts";

export interface HiddenObject {
  name: string;
  aliases: readonly string[];
  answers: Readonly<Record<AttributeName, Answer>>;
  /** On the scale of objects.ts; undefined if it varies. */
  size: number | undefined;
}

interface Traits {
  said: Map<string, Answer>;
  size: number | undefined;
}

/** All objects in order. Throws ERR_INTERNAL if they are inconsistent. */
function readTable(groups: readonly { of: string; objects: string }[]): HiddenObject[] {
  const objects: HiddenObject[] = [];
  const names = new Set<string>();
  for (const group of groups) {
    for (const line of group.objects.split("\n")) {
      if (line.trim() === "") continue;
      const match = /^\s*([^:(]+?)\s*(?:\(([^)]*)\))?\s*:(.*)$/.exec(line);
      if (match === null) throw new NlacError("ERR_INTERNAL", `objects: cannot read "${line}".`);
      const name = match[1]!;
      const aliases = (match[2] ?? "")
        .split(",")
        .flatMap((alias) => (alias.trim() === "" ? [] : [alias.trim()]));
      for (const any of [name, ...aliases]) {
        if (names.has(any)) throw new NlacError("ERR_INTERNAL", `objects: "${any}" occurs twice.`);
        names.add(any);
      }
      const traits: Traits = { said: new Map(), size: undefined };
      apply(`@${group.of} ${match[3]!}`, traits, name);
      objects.push({ name, aliases, answers: answersOf(traits), size: traits.size });
    }
  }
  return objects;
}

function apply(text: string, traits: Traits, where: string): void {
  for (const trait of text.split(/\s+/)) {
    if (trait === "") continue;
    if (trait.startsWith("@")) {
      const inherited = classes[trait.slice(1)];
      if (inherited === undefined)
        throw new NlacError("ERR_INTERNAL", `objects: no class ${trait} (${where}).`);
      apply(inherited, traits, where);
    } else if (/^s\d/.test(trait)) {
      traits.size = Number(trait.slice(1));
    } else if (trait === "?size") {
      traits.size = undefined;
    } else if (trait.startsWith("c:")) {
      const typical = trait.slice(2).split("/");
      for (const colour of colours) {
        traits.said.set(colour, !typical.includes(colour) ? "no" : typical.length === 1 ? "yes" : "unknown");
      }
    } else {
      const [answer, name]: [Answer, string] =
        trait[0] === "!"
          ? ["no", trait.slice(1)]
          : trait[0] === "?"
            ? ["unknown", trait.slice(1)]
            : ["yes", trait];
      if (!Object.hasOwn(attributes, name)) {
        throw new NlacError("ERR_INTERNAL", `objects: no attribute ${name} (${where}).`);
      }
      traits.said.set(name, answer);
    }
  }
}

function answersOf({ said, size }: Traits): Record<AttributeName, Answer> {
  const answers = {} as Record<AttributeName, Answer>;
  for (const name of attributeNames) {
    const attribute: Attribute = attributes[name];
    const boundary = sizeAttributes[name];
    answers[name] = said.get(name) ?? (boundary ? bySize(size, boundary) : attribute.otherwise);
  }
  // Weight follows from size unless an object overrides it.
  if (!said.has("heavy"))
    answers.heavy = size === undefined ? "unknown" : size <= 3.3 ? "no" : size >= 5 ? "yes" : "unknown";
  return answers;
}

function bySize(size: number | undefined, { from, larger }: { from: number; larger: Answer }): Answer {
  if (size === undefined || Math.abs(size - from) < sameSize) return "unknown";
  return size > from === (larger === "yes") ? "yes" : "no";
}

export const table: readonly HiddenObject[] = readTable(groups);

/** By name and by every other name. */
export const byName: ReadonlyMap<string, HiddenObject> = new Map(
  table.flatMap((object) => [object.name, ...object.aliases].map((name) => [name, object] as const)),
);

export const tableNames = new Names(table);

const further = new Map(readTable(furtherGroups).map((object) => [object.name, object]));

/** The table's entry for a word, of the embedded game or of another list. */
export function objectNamed(word: string): HiddenObject | undefined {
  return further.get(word) ?? byName.get(tableNames.meaning(word) ?? "");
}
