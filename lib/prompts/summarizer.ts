/**
 * The summarizer of HOPE (appendices G.3, H.3, I.3): reads a finished episode together with what
 * the agent was not told, and describes what the agent tried and what it missed. Only the proposer
 * reads its summary.
 */

import type { Message, PrivilegedInformation } from "../contract/environment.ts";
import { malformed, type Parsed } from "./parsing.ts";
import { messagesText, type ReadTurn, transcriptText } from "./transcript.ts";

/**
 * "short": two to four sentences, with the secret. "negotiation": ten questions about a sale, in
 * five sections, without it.
 */
export type SummaryForm = "short" | "negotiation";

const short = [
  "Write a summary of two to four sentences. It must say",
  "- which approach the agent took, and which of its actions helped or wasted a turn;",
  "- whether the episode ended well;",
  "- what the secret was, if one is given below, to which wider group of things it belongs, and at which point a",
  "  better action would have led to it sooner.",
  "Write plain sentences without a heading.",
].join("\n");

const negotiation = [
  "Answer these ten questions, under these five headings, with one or two sentences each:",
  "",
  "Demands",
  "1. Which demands did the buyer hold on to until the end? What the buyer wished for at the very beginning is only a",
  "   dream car: what is repeated later counts.",
  "2. Must all of the wanted features be there, or only some, and which demands were given up?",
  "Mood",
  "3. How did the buyer behave: calm, keen, in a hurry, distrustful?",
  "4. How did the price and the time that was taken change this?",
  "Searches",
  "5. What did the seller search for, and what in the conversation led to it?",
  "6. Did a search ask for one property or for several at once, and did it find anything?",
  "Offers",
  "7. Which cars did the seller offer, and had a search shown each of them?",
  "8. Which discounts did the seller give, when, and did the buyer ask for them?",
  "Outcome",
  "9. How did the negotiation end, and why?",
  "10. Which car and which price would have been better?",
].join("\n");

/** The request for a summary of a whole episode. */
export function summarizerMessages(
  opening: readonly Message[],
  turns: readonly ReadTurn[],
  { secret, failureReason }: PrivilegedInformation,
  form: SummaryForm,
): Message[] {
  return [
    {
      role: "system",
      content: [
        "You review what an agent did in a task that is over. You know more than the agent did. Your summary helps a",
        "teacher to find better actions; the agent never reads it.",
        "",
        form === "short" ? short : negotiation,
      ].join("\n"),
    },
    {
      role: "user",
      content: [
        "# What the agent was told",
        messagesText(opening),
        "",
        "# What happened",
        transcriptText(turns),
        // The paper's summarizer of Car Dealer reads the reason of the failure only (appendix I.3).
        ...(secret === undefined || form === "negotiation" ? [] : ["", "# The secret", secret]),
        ...(failureReason === undefined ? [] : ["", "# Why it failed", failureReason]),
        "",
        "Write the summary.",
      ].join("\n"),
    },
  ];
}

/** Longest summary that is used, in characters. */
const maxLength = 8000;

/** Any text is a summary, unless it is empty or far too long to be one. */
export function parseSummary(text: string): Parsed<{ summary: string }> {
  const summary = text.trim();
  if (summary === "") return malformed("the summary is empty");
  if (summary.length > maxLength) return malformed(`the summary is longer than ${maxLength} characters`);
  return { ok: true, summary };
}
