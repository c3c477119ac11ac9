/**
 * A customer played by rules: offline and deterministic. For tests, and for small models without a
 * service.
 *
 * It opens with all of its instruction in the first person: "you" becomes "I" or "me", "your"
 * becomes "my", and sentences that only list traits of character are left out. It answers the agent
 * by the first rule that applies:
 *
 * 1. After `maxAgentTurns` turns of the agent: the stop word.
 * 2. Asked for its identity: the name, e-mail address, zip code and user id in the instruction.
 * 3. Asked to confirm, or whether to go ahead: yes.
 * 4. Asked whether there is anything else: the stop word.
 * 5. Asked whether something is right, or wanted: yes.
 * 6. Asked anything else: all of its request again.
 * 7. Told that something was done, or that it is being transferred to a human: the stop word.
 * 8. Otherwise it asks the agent to go on.
 *
 * It does not control the order in which it reveals information, treats "if the agent … then …" as
 * part of its request, and believes an agent that claims to be done. Success rates with it are
 * therefore not comparable with those of a simulated person.
 */

import { throwIfAborted } from "../../base/errors.ts";
import { stopWord, type User } from "./user.ts";

/** Most turns of the agent per conversation. */
export const maxAgentTurns = 12;

export const scriptedUser: User = {
  async start({ instruction }, { signal }) {
    throwIfAborted(signal);
    const request = inFirstPerson(instruction) || "Hello.";
    let turns = 0;
    return {
      opening: request,
      async respond(text) {
        throwIfAborted(signal);
        turns++;
        return turns >= maxAgentTurns ? stopWord : answer(text, instruction, request);
      },
    };
  },
};

const asksForReply = [/\?/, /\b(?:please|need|reply|tell me|let me know)\b/i];
// The distance is bounded because an agent's text may be long and arbitrary.
const asksIdentity = [
  /\b(?:verify|confirm|authenticate|validate)\s+(?:who you are|your (?:identity|account))/i,
  /\b(?:provide|give|share|send|enter|tell me|what(?:'s|’s| is)|need|know)\b[^.?!]{0,60}\byour\b[^.?!]{0,60}\b(?:e-?mail|zip|postal code|user id|name)\b/i,
];
const asksToGoAhead = [/\b(?:confirm|proceed|go ahead|yes\/no|yes or no)\b/i];
const asksForMore = [
  /\b(?:anything|something) else\b/i,
  /\b(?:further|more|other) (?:help|assistance|questions?|requests?)\b/i,
];
const asksForConsent = [
  /\bsounds? (?:good|right)\b/i,
  /\b(?:is|are) (?:this|that|these|those|it|everything) (?:correct|right|okay|ok|all|fine)\b/i,
  /\b(?:shall|should|may|can) i\b(?! help| assist)/i,
  /\b(?:do you want|would you like) (?:me )?to\b/i,
];
const tellsOutcome = [
  /\b(?:ha(?:s|ve) been|is now|are now|was|were|done|completed?|successful(?:ly)?|transferr(?:ed|ing))\b/i,
];

function answer(text: string, instruction: string, request: string): string {
  const fits = (patterns: readonly RegExp[]) => patterns.some((pattern) => pattern.test(text));
  if (fits(asksForReply)) {
    if (fits(asksIdentity)) return identity(instruction);
    if (fits(asksToGoAhead)) return "Yes, please go ahead.";
    if (fits(asksForMore)) return stopWord;
    if (fits(asksForConsent)) return "Yes, please.";
  }
  if (text.includes("?")) return request;
  return fits(tellsOutcome) ? stopWord : "Please go on.";
}

/** The parts of the instruction that identify the customer. */
function identity(instruction: string): string {
  const name = /\b(?:name is|[Yy]ou are) ((?:[A-Z][\w'-]+ ?){1,2})\b/.exec(instruction)?.[1]?.trim();
  const email = /[\w.+-]+@[\w-]+(?:\.[\w-]+)+/.exec(instruction)?.[0];
  const zip = /\b\d{5}\b/.exec(instruction)?.[0];
  const userId = /\b(?!(?:credit|gift)_card)[a-z]+_[a-z]+_\d+\b/.exec(instruction)?.[0];
  const parts = Object.entries({ name, "e-mail address": email, "zip code": zip, "user id": userId }).filter(
    ([, value]) => value !== undefined,
  );
  if (parts.length === 0) return "I do not remember that.";
  return `${parts.map(([what, value], i) => `${i === 0 ? "My" : "my"} ${what} is ${value}`).join(", ")}.`;
}

/** The instruction in the customer's words. */
export function inFirstPerson(instruction: string): string {
  const replacements: [RegExp, string][] = [
    [/(?<=^|[.!?]\s+)you are [a-z-]+(?:,(?: and)? [a-z-]+)*(?:\.\s*|$)/gi, ""],
    [/\byou name is\b/gi, "my name is"],
    [/\byourself\b/gi, "myself"],
    [/\byours\b/gi, "mine"],
    [/\byour\b/gi, "my"],
    [/\byou(?:'|’)re\b/gi, "I'm"],
    [/\byou(['’](?:ve|d|ll))\b/gi, "I$1"],
    [/\byou are\b/gi, "I am"],
    [/\byou were\b/gi, "I was"],
    [/\bare you\b/gi, "am I"],
    [/\b(for|to|from|with|about|of|at|by|on) you\b/gi, "$1 me"],
    [
      /\b(gives?|tells?|told|asks?|offers?|lets?|helps?|refunds?|charges?|shows?|sends?|makes?|saves?) you\b/gi,
      "$1 me",
    ],
    [/\byou\b/gi, "I"],
  ];
  const text = replacements.reduce((said, [from, to]) => said.replace(from, to), instruction);
  // Restores the capital at the beginning of a sentence.
  return text.replace(/(^|[.!?]\s+)(my|mine|am)\b/g, (_, before: string, word: string) => {
    return `${before}${word[0]!.toUpperCase()}${word.slice(1)}`;
  });
}
